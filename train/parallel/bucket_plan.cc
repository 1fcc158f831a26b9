// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace af::train {

std::vector<BucketPlan> plan_buckets(const std::vector<ParameterShape>& parameters,
                                     const std::vector<std::size_t>& order, BucketLimits limits) {
  struct Open {
    std::size_t bucket = 0;
    bool first = true;
    bool closed = true;
  };
  std::vector<BucketPlan> buckets;
  std::map<std::pair<int, int>, Open> open;  // by type and device
  for (const std::size_t i : order) {
    const ParameterShape& one = parameters[i];
    Open& current = open[std::make_pair(one.type, one.device)];
    if (current.closed) {
      current.bucket = buckets.size();
      current.closed = false;
      buckets.emplace_back();
    }
    BucketPlan& bucket = buckets[current.bucket];
    const auto align = static_cast<int64_t>(64 / one.element_bytes);
    const int64_t offset = (bucket.elements + align - 1) / align * align;
    bucket.parameters.push_back(i);
    bucket.offsets.push_back(offset);
    bucket.elements = offset + one.elements;
    const std::size_t limit = current.first ? limits.first : limits.rest;
    if (static_cast<std::size_t>(bucket.elements) * one.element_bytes < limit) continue;
    current.closed = true;
    current.first = false;
  }
  return buckets;
}

bool same_buckets(const std::vector<BucketPlan>& a, const std::vector<BucketPlan>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const BucketPlan& one, const BucketPlan& other) {
                      auto mine = one.parameters;
                      auto theirs = other.parameters;
                      std::sort(mine.begin(), mine.end());
                      std::sort(theirs.begin(), theirs.end());
                      return mine == theirs;
                    });
}

std::vector<std::size_t> reverse_order(std::size_t parameters) {
  std::vector<std::size_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

}  // namespace af::train
