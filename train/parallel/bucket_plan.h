// SPDX-License-Identifier: Apache-2.0
// Which parameters share a bucket, and where in it: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace af::train {

struct ParameterShape {
  int64_t elements = 0;
  int type = 0;    // at::ScalarType; a bucket has one type
  int device = 0;  // any number that tells devices apart; likewise
  std::size_t element_bytes = 4;
};

struct BucketPlan {
  std::vector<std::size_t> parameters;  // indices into the argument
  std::vector<int64_t> offsets;         // of each, in elements
  int64_t elements = 0;                 // of all, without the sums that travel with the last bucket
  bool operator==(const BucketPlan&) const = default;
};

struct BucketLimits {
  std::size_t smallest = std::size_t{1} << 20;
  std::size_t largest = std::size_t{25} << 20;
};

// By this order of the parameters (each once), each type and device apart. A bucket is closed when
// it has reached its limit in bytes, so it may be larger. The limits grow from limits.smallest to
// twice the one before, so that there is soon something to send, up to a sixteenth of all and to
// limits.largest: a link that is as fast as backward waits while the largest fills. At the end none
// has more than half of what is left, down to limits.smallest: backward is over when the last
// bucket is complete, so nothing hides the reduction of that one. Each parameter starts at a
// multiple of 64 bytes, for the vector units. The same plan for the same arguments on every rank.
std::vector<BucketPlan> plan_buckets(const std::vector<ParameterShape>& parameters,
                                     const std::vector<std::size_t>& order, BucketLimits limits);

// Whether each bucket has the same parameters in both, wherever in it: then it makes no difference
// to when a bucket is complete.
bool same_buckets(const std::vector<BucketPlan>& a, const std::vector<BucketPlan>& b);

// About the order in which backward finishes gradients, before it has been seen.
std::vector<std::size_t> reverse_order(std::size_t parameters);

}  // namespace af::train
