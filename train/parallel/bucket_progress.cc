// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_progress.h"

#include <algorithm>

namespace af::train {

BucketProgress::BucketProgress(const std::vector<BucketPlan>& plan, std::size_t parameters)
    : bucket_of_(parameters), marked_(parameters) {
  for (std::size_t i = 0; i < plan.size(); ++i) {
    sizes_.push_back(plan[i].parameters.size());
    for (const std::size_t parameter : plan[i].parameters) bucket_of_[parameter] = i;
  }
  begin();
}

void BucketProgress::begin() {
  missing_ = sizes_;
  std::fill(marked_.begin(), marked_.end(), char{0});
  gone_ = 0;
}

bool BucketProgress::mark(std::size_t parameter) {
  if (marked_[parameter] != 0) return false;
  marked_[parameter] = 1;
  --missing_[bucket_of_[parameter]];
  return true;
}

std::optional<std::size_t> BucketProgress::take_complete() {
  if (gone_ + 1 >= missing_.size() || missing_[gone_] > 0) return std::nullopt;
  return gone_++;
}

std::optional<std::size_t> BucketProgress::take_next() {
  if (gone_ >= missing_.size()) return std::nullopt;
  return gone_++;
}

}  // namespace af::train
