// SPDX-License-Identifier: Apache-2.0
// The few calls of MLflow's REST API (2.0) that a run needs, and what their answers mean.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "af/train/mlflow_logger.h"
#include "train/metrics/http_client.h"
#include "train/metrics/mlflow_item.h"

namespace af::train {

struct MlflowAnswer {
  enum class Kind {
    done,
    later,    // not reached, overloaded, an error of the server's own: the same may go through
    refused,  // it will never take this
    missing,  // what it is about is not there
  };
  Kind kind = Kind::later;
  std::string why;               // for a person, unless done
  std::string value;             // an id, of calls that ask for one
  std::chrono::seconds wait{0};  // that the server asked for

  bool done() const { return kind == Kind::done; }
};

// What an HTTP reply means. Pure. The body of `done` is JSON: a page of a proxy's is not an answer.
MlflowAnswer meaning_of(const HttpReply& reply);
// Without the password that a URI may have in it. Pure.
std::string without_credentials(const std::string& uri);

class MlflowClient {
 public:
  // Throws Error for a tracking URI that is not http(s).
  explicit MlflowClient(const MlflowOptions& options);

  // The experiment's id; made if there is none of that name.
  MlflowAnswer find_experiment(const std::string& name);
  // A run's id. `missing`: there is none with the tag.
  MlflowAnswer find_run(const std::string& experiment_id, const std::string& tag,
                        const std::string& value);
  MlflowAnswer create_run(const std::string& experiment_id, const std::string& name,
                          const std::map<std::string, std::string>& tags);
  // `missing` also for one that was deleted.
  MlflowAnswer check_run(const std::string& run_id);
  MlflowAnswer log_batch(const std::string& run_id, const std::vector<MlflowItem>& items);
  MlflowAnswer set_status(const std::string& run_id, const MlflowItem& status);

  void end_by(std::chrono::steady_clock::time_point when) { http_.end_by(when); }

 private:
  MlflowAnswer post(const std::string& call, const std::string& body, std::string* reply = nullptr);

  std::string api_;
  HttpClient http_;
};

}  // namespace af::train
