// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_plan.h"

#include <map>
#include <utility>

namespace af::train {

std::vector<BucketPlan> plan_buckets(const std::vector<ParameterShape>& parameters,
                                     std::size_t limit) {
  std::vector<BucketPlan> buckets;
  std::map<std::pair<int, int>, std::size_t> open;  // (type, device) -> index into buckets
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const ParameterShape& one = parameters[i];
    const auto key = std::make_pair(one.type, one.device);
    auto found = open.find(key);
    if (found == open.end()) {
      found = open.emplace(key, buckets.size()).first;
      buckets.emplace_back();
    }
    BucketPlan& bucket = buckets[found->second];
    const auto align = static_cast<int64_t>(64 / one.element_bytes);
    const int64_t offset = (bucket.elements + align - 1) / align * align;
    bucket.parameters.push_back(i);
    bucket.offsets.push_back(offset);
    bucket.elements = offset + one.elements;
    if (static_cast<std::size_t>(bucket.elements) * one.element_bytes >= limit) open.erase(found);
  }
  return buckets;
}

}  // namespace af::train
