// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/bucket_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace af::train {
namespace {

// While the buckets grow, a link that is as fast as backward waits as long as the largest takes to
// fill: a sixteenth of a step's communication then.
constexpr std::size_t kParts = 16;

}  // namespace

std::vector<BucketPlan> plan_buckets(const std::vector<ParameterShape>& parameters,
                                     const std::vector<std::size_t>& order, BucketLimits limits) {
  struct Open {
    std::size_t bucket = 0;
    std::size_t limit = 0;    // of the bucket; 0: none is open
    std::size_t largest = 0;  // limit that none exceeds
    std::size_t left = 0;     // bytes of the parameters that are in no closed bucket
    std::size_t before = 0;   // limit of the bucket before
  };
  const auto bytes_of = [](const ParameterShape& one) {
    return static_cast<std::size_t>(one.elements) * one.element_bytes;
  };
  std::vector<BucketPlan> buckets;
  std::map<std::pair<int, int>, Open> open;  // by type and device
  for (const ParameterShape& one : parameters)
    open[std::make_pair(one.type, one.device)].left += bytes_of(one);
  for (auto& [key, all] : open)
    all.largest = std::min(limits.largest, std::max(limits.smallest, all.left / kParts));
  for (const std::size_t i : order) {
    const ParameterShape& one = parameters[i];
    Open& current = open[std::make_pair(one.type, one.device)];
    if (current.limit == 0) {
      current.bucket = buckets.size();
      const std::size_t half = std::max(limits.smallest, current.left / 2);
      current.limit =
          std::min({current.largest, half, std::max(limits.smallest, 2 * current.before)});
      buckets.emplace_back();
    }
    BucketPlan& bucket = buckets[current.bucket];
    const auto align = static_cast<int64_t>(64 / one.element_bytes);
    const int64_t offset = (bucket.elements + align - 1) / align * align;
    bucket.parameters.push_back(i);
    bucket.offsets.push_back(offset);
    bucket.elements = offset + one.elements;
    const std::size_t bytes = static_cast<std::size_t>(bucket.elements) * one.element_bytes;
    if (bytes < current.limit) continue;
    for (const std::size_t member : bucket.parameters) current.left -= bytes_of(parameters[member]);
    current.before = current.limit;
    current.limit = 0;
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
