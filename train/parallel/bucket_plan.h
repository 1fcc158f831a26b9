// SPDX-License-Identifier: Apache-2.0
// Which parameters share a bucket, and where in it: a pure function.
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
  int64_t elements = 0;                 // of all, without the place for the count of samples
};

// In reverse order of the parameters, which is about the order in which backward finishes their
// gradients; a bucket is closed when it has reached `limit` bytes (so it may be larger). Each
// parameter starts at a multiple of 64 bytes, for the vector units.
std::vector<BucketPlan> plan_buckets(const std::vector<ParameterShape>& parameters,
                                     std::size_t limit);

}  // namespace af::train
