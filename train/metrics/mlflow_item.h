// SPDX-License-Identifier: Apache-2.0
// What a run of MLflow's consists of, as it stands in the spool (a line each) and in requests.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace af::train {

struct MlflowItem {
  enum class Kind { metric, param, tag, status };
  Kind kind = Kind::metric;
  std::string key;
  std::string text;  // of a param or tag; RUNNING, FINISHED or FAILED
  double value = 0;  // of a metric
  int64_t time = 0;  // of a metric or status: ms since 1970
  int64_t step = 0;  // of a metric
  bool operator==(const MlflowItem&) const = default;
};

// What the server takes as a key: other characters become "_", too long ones are cut.
std::string mlflow_key(const std::string& name);

// With a line break at the end. NaN and infinities as the texts that protobuf's JSON has for them.
std::string spool_line(const MlflowItem& item);
// Nothing for a line that is none.
std::optional<MlflowItem> parse_spool_line(const std::string& line);

// The body of runs/log-batch, of metrics, params and tags.
std::string log_batch_body(const std::string& run_id, const std::vector<MlflowItem>& items);

// How many of the items, from the first on, go into one request: the server takes 1000 metrics, 100
// params, 100 tags, 1000 together and 1 MB. A status is a request of its own.
std::size_t batch_size(const std::vector<MlflowItem>& items);

}  // namespace af::train
