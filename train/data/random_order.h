// SPDX-License-Identifier: Apache-2.0
// Permutations that are the same on every machine: checkpoints rest on them.
#pragma once

#include <algorithm>
#include <array>
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
      if (value >= bound || value >= (0 - bound) % bound) return remainder(value, bound);
    }
  }

 private:
  // value % bound. An epoch's order takes a division for each row, by another number each time, and
  // that was a seventh of the time in which rows come out of memory. By floating point divisions
  // overlap. The quotient is below 2^52 then, and what is cut off and rounded makes it wrong by 3
  // at most.
  static uint64_t remainder(uint64_t value, uint64_t bound) {
    if (bound < 4096 || bound > (uint64_t{1} << 52)) return value % bound;
    const auto high = static_cast<double>(static_cast<int64_t>(value >> 12));
    const auto quotient = static_cast<int64_t>(high * (4096.0 / static_cast<double>(bound)));
    const auto step = static_cast<int64_t>(bound);
    auto rest = static_cast<int64_t>(value - static_cast<uint64_t>(quotient) * bound);
    while (rest < 0) rest += step;
    while (rest >= step) rest -= step;
    return static_cast<uint64_t>(rest);
  }

  uint64_t state_;
};

// Fisher and Yates. Which values change places does not depend on them, so the processor is told a
// good many exchanges before: of a large set each is out of the cache.
inline void shuffle(std::vector<int64_t>& values, SplitMix64 random) {
  constexpr size_t kAhead = 32;
  std::array<size_t, kAhead> other;
  for (size_t left = values.size(); left > 1;) {
    const size_t some = std::min(kAhead, left - 1);
    for (size_t k = 0; k < some; ++k) {
      other[k] = random.below(left - k);
      __builtin_prefetch(&values[other[k]], 1);
    }
    for (size_t k = 0; k < some; ++k) std::swap(values[left - k - 1], values[other[k]]);
    left -= some;
  }
}

// Mixed at every number: (seed 1, epoch 2) and (seed 2, epoch 1) must not be the same stream.
inline SplitMix64 stream_of(uint64_t seed, int64_t epoch) {
  return SplitMix64(SplitMix64(seed).next() + static_cast<uint64_t>(epoch));
}
inline SplitMix64 stream_of(uint64_t seed, int64_t epoch, int64_t part) {
  return SplitMix64(stream_of(seed, epoch).next() + static_cast<uint64_t>(part));
}

}  // namespace af::train
