// SPDX-License-Identifier: Apache-2.0
// What the ranks of a world tell each other before a checkpoint, in one all-gather, and what comes
// of it: the same on all ranks. No effects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace af::train {

// Of one rank.
struct SaveOffer {
  bool saves = false;       // it has where to save to
  uint64_t parameters = 0;  // hash_of() the model
  uint32_t layout = 0;      // of the state: StateLayout::fingerprint()
  std::string name;         // of the directory that rank 0 has made; empty if it has none
  std::string host_random;  // bytes of RandomState
  std::string device_random;
};

// All ranks' have the same length. Throws af::Error for what is longer than there is room for.
std::vector<uint64_t> to_words(const SaveOffer& offer);
// Those of all ranks, one after the other.
std::vector<SaveOffer> to_offers(const std::vector<uint64_t>& words);

// Throws af::Error naming the ranks whose parameters are not those of rank 0: the copies of the
// model have drifted apart, and such a checkpoint would be of no rank.
void check_parameters(const std::vector<SaveOffer>& offers);

// Whether each rank can write a share: all of them save, the same state by name, type and shape,
// and rank 0 has made a directory. Otherwise rank 0 saves alone, if it saves.
bool can_share(const std::vector<SaveOffer>& offers);

}  // namespace af::train
