// SPDX-License-Identifier: Apache-2.0
// What ranks add up in a step beside the gradients: a row of numbers that travels at the end of the
// last bucket, so that a small model's step is one operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace af::train {

// One rank's part.
struct StepPart {
  double samples = 0;
  double loss = 0;       // mean over these samples
  bool change = false;   // the world is to change
  bool save = false;     // the job ends
  bool rebuild = false;  // rank 0 only: the buckets are to be built anew
  // The first parameter that got no gradient although this rank had samples.
  std::optional<std::size_t> missing;
  std::vector<char> used;  // by parameter, or empty: not asked for
};

// Of all ranks, the same on each.
struct StepSums {
  double samples = 0;
  double loss = 0;  // sum over the samples
  bool change = false;
  bool save = false;
  bool rebuild = false;
  int64_t ranks_missing = 0;
  std::optional<std::size_t> missing;  // of them, where they tell
  std::vector<char> used;              // by any rank
};

// How many numbers there are.
std::size_t count_of_sums(std::size_t used_parameters);

// Numbers whose sums over the ranks say it, after each rank's have been multiplied by its `factor`
// (that of its gradients, which they travel with). The samples are exact in f32 up to 2^24 of all
// ranks together.
std::vector<double> to_numbers(const StepPart& part, double factor);
StepSums from_numbers(const std::vector<double>& sums);

// Powers of two that gradients are divided by before they are added up, so that what is added up is
// within a factor of two of the mean: half precision holds no sum over 65504. Powers of two change
// no bits in f32, so it does not matter to the result which one it is.
double reference_for(double samples);

}  // namespace af::train
