// SPDX-License-Identifier: Apache-2.0
// Sends what spools hold to one run of an MLflow server, which it finds or makes.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "train/metrics/mlflow_client.h"
#include "train/metrics/mlflow_spool.h"

namespace af::train {

// Use from one thread.
class MlflowRun {
 public:
  // `say` gets lines for a person. Throws Error, as MlflowClient.
  MlflowRun(MlflowOptions options, std::function<void(const std::string&)> say);

  // One attempt to send everything: done, or why not. `missing` and `refused` are for good.
  MlflowAnswer send(SpoolFile& spool);
  void end_by(std::chrono::steady_clock::time_point when) { client_.end_by(when); }

 private:
  MlflowAnswer find();
  MlflowAnswer find_again_or_create(const std::string& experiment_id);
  MlflowAnswer send_items(const std::vector<MlflowItem>& items);
  MlflowAnswer halve(const std::vector<MlflowItem>& items, const MlflowAnswer& refusal);
  void leave_out(const MlflowItem& item, const std::string& why);
  void remember() const;
  void recall();

  MlflowOptions options_;
  std::function<void(const std::string&)> say_;
  MlflowClient client_;
  std::string run_id_;
  std::string mark_;  // a tag by which a run is found whose id was lost with an answer
  bool maybe_made_ = false;
  int left_out_ = 0;
};

}  // namespace af::train
