// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/step_sums.h"

#include <cmath>

namespace af::train {
namespace {

enum Place : std::size_t { kSamples, kLoss, kChange, kSave, kRebuild, kRanks, kMissing, kUsed };

}  // namespace

std::size_t count_of_sums(std::size_t used_parameters) {
  return kUsed + used_parameters;
}

std::vector<double> to_numbers(const StepPart& part, double factor) {
  const double one = 1 / factor;
  std::vector<double> numbers(count_of_sums(part.used.size()));
  numbers[kSamples] = part.samples / factor;
  // A rank without samples may have a loss that is no number, and 0 times that is none either.
  numbers[kLoss] = part.samples > 0 ? part.loss * (part.samples / factor) : 0;
  numbers[kChange] = part.change ? one : 0;
  numbers[kSave] = part.save ? one : 0;
  numbers[kRebuild] = part.rebuild ? one : 0;
  if (part.missing) {
    numbers[kRanks] = one;
    numbers[kMissing] = static_cast<double>(*part.missing) * one;
  }
  for (std::size_t i = 0; i < part.used.size(); ++i) numbers[kUsed + i] = part.used[i] ? one : 0;
  return numbers;
}

StepSums from_numbers(const std::vector<double>& sums) {
  StepSums all;
  all.samples = std::round(sums[kSamples]);
  all.loss = sums[kLoss];
  all.change = sums[kChange] > 0;
  all.save = sums[kSave] > 0;
  all.rebuild = sums[kRebuild] > 0;
  all.ranks_missing = std::llround(sums[kRanks]);
  if (all.ranks_missing == 1) all.missing = static_cast<std::size_t>(std::llround(sums[kMissing]));
  for (std::size_t i = kUsed; i < sums.size(); ++i) all.used.push_back(sums[i] > 0 ? 1 : 0);
  return all;
}

double reference_for(double samples) {
  return samples >= 1 ? std::exp2(std::floor(std::log2(samples))) : 1;
}

}  // namespace af::train
