// SPDX-License-Identifier: Apache-2.0
// Permutations that are the same on every machine: checkpoints rest on them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace af::train {

// splitmix64 (Vigna, public domain). Neither std::shuffle nor the std distributions promise the
// same stream in two standard libraries, and a checkpoint must mean the same order everywhere.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t state) : state_(state) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound): values of the incomplete last round are drawn again.
  uint64_t below(uint64_t bound) {
    for (;;) {
      const uint64_t value = next();
      // The round's rest is less than `bound`; so its division is almost never needed.
      if (value >= bound || value >= (0 - bound) % bound) return value % bound;
    }
  }

 private:
  uint64_t state_;
};

// Fisher and Yates.
inline void shuffle(std::vector<int64_t>& values, SplitMix64 random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

// Mixed at every number: (seed 1, epoch 2) and (seed 2, epoch 1) must not be the same stream.
inline SplitMix64 stream_of(uint64_t seed, int64_t epoch) {
  return SplitMix64(SplitMix64(seed).next() + static_cast<uint64_t>(epoch));
}
inline SplitMix64 stream_of(uint64_t seed, int64_t epoch, int64_t part) {
  return SplitMix64(stream_of(seed, epoch).next() + static_cast<uint64_t>(part));
}

}  // namespace af::train
