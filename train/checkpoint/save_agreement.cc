// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/save_agreement.h"

#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "common/error.h"

namespace af::train {
namespace {

constexpr std::size_t kNumbers = 6;  // flag, hash, layout, three lengths
constexpr std::size_t kNameBytes = 192;
constexpr std::size_t kHostBytes = 5120;  // libtorch 1.13 and 2.x: 5056
constexpr std::size_t kDeviceBytes = 64;  // CUDA: 16
constexpr std::size_t kWords = kNumbers + (kNameBytes + kHostBytes + kDeviceBytes) / 8;

}  // namespace

std::vector<uint64_t> to_words(const SaveOffer& offer) {
  std::vector<uint64_t> words(kWords);
  words[0] = offer.saves ? 1 : 0;
  words[1] = offer.parameters;
  words[2] = offer.layout;
  char* text = reinterpret_cast<char*>(words.data() + kNumbers);
  std::size_t number = 3;
  const auto put = [&](const std::string& bytes, std::size_t room, const char* what) {
    if (bytes.size() > room)
      throw Error::format("{} of {} bytes, where a checkpoint has room for {}", what, bytes.size(),
                          room);
    words[number++] = bytes.size();
    std::memcpy(text, bytes.data(), bytes.size());
    text += room;
  };
  put(offer.name, kNameBytes, "a name");
  put(offer.host_random, kHostBytes, "a state of the host's random numbers");
  put(offer.device_random, kDeviceBytes, "a state of a device's random numbers");
  return words;
}

std::vector<SaveOffer> to_offers(const std::vector<uint64_t>& words) {
  std::vector<SaveOffer> offers;
  for (std::size_t at = 0; at + kWords <= words.size(); at += kWords) {
    const uint64_t* one = words.data() + at;
    const char* text = reinterpret_cast<const char*>(one + kNumbers);
    SaveOffer offer;
    offer.saves = one[0] != 0;
    offer.parameters = one[1];
    offer.layout = static_cast<uint32_t>(one[2]);
    offer.name.assign(text, std::min<std::size_t>(one[3], kNameBytes));
    offer.host_random.assign(text + kNameBytes, std::min<std::size_t>(one[4], kHostBytes));
    offer.device_random.assign(text + kNameBytes + kHostBytes,
                               std::min<std::size_t>(one[5], kDeviceBytes));
    offers.push_back(offer);
  }
  return offers;
}

void check_parameters(const std::vector<SaveOffer>& offers) {
  std::vector<std::size_t> differing;
  for (std::size_t rank = 1; rank < offers.size(); ++rank)
    if (offers[rank].parameters != offers[0].parameters) differing.push_back(rank);
  if (!differing.empty())
    throw Error::format(
        "the parameters of rank {} are not those of rank 0: the copies of the model have drifted "
        "apart (something changed them on some ranks only); no checkpoint is saved of it",
        fmt::join(differing, ", "));
}

bool can_share(const std::vector<SaveOffer>& offers) {
  return offers.size() > 1 && !offers[0].name.empty() &&
         std::all_of(offers.begin(), offers.end(), [&](const SaveOffer& one) {
           return one.saves && one.layout == offers[0].layout;
         });
}

}  // namespace af::train
