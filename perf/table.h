// SPDX-License-Identifier: Apache-2.0
// The table that people in the field can read: the columns of nccl-tests.
#pragma once

#include <string>
#include <vector>

#include "perf/measure.h"

namespace af::perf {

std::string header(OperationKind kind);
std::string format_row(const Plan& plan, const Row& row, int world_size);

// What stands below the rows.
class Summary {
 public:
  void add(const Plan& plan, const Row& row, int world_size);
  std::uint64_t wrong() const { return wrong_; }
  std::string text() const;

 private:
  std::uint64_t wrong_ = 0;
  double bandwidth_ = 0;  // sum of the bus bandwidths
  int figures_ = 0;
};

}  // namespace af::perf
