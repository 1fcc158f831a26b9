// SPDX-License-Identifier: Apache-2.0
#include "collectives/roll_call.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "af/communicator.h"

namespace af {
namespace {
constexpr std::int64_t kSilent = -1;
}

RollCall::RollCall(int world_size, int rank, std::int64_t sequence)
    : sequence_(sequence), entered_(static_cast<std::size_t>(world_size), kSilent) {
  heard(rank, sequence);
}

void RollCall::heard(int rank, std::int64_t sequence) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= entered_.size()) return;
  auto& entered = entered_[static_cast<std::size_t>(rank)];
  entered = std::max(entered, sequence);  // answers may overtake each other
}

bool RollCall::complete() const {
  return missing().empty();
}

std::vector<int> RollCall::missing() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < entered_.size(); ++rank) {
    if (entered_[rank] < sequence_) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

std::string seconds_text(std::chrono::milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000.0 << " s";
  return text.str();
}

void throw_timeout(const std::string& where, std::chrono::milliseconds timeout,
                   const std::vector<int>& missing) {
  constexpr auto kTimeout = CommunicatorError::Kind::timeout;
  if (missing.empty()) {
    throw CommunicatorError(kTimeout, where + ": not finished after " + seconds_text(timeout) +
                                          " though all ranks came");
  }
  throw CommunicatorError(
      kTimeout,
      where + ": " + rank_list(missing) + " did not take part within " + seconds_text(timeout),
      missing);
}

std::string ranks_to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

std::vector<int> ranks_from_text(const std::string& text) {
  std::vector<int> ranks;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    int rank = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), rank);
    if (error == std::errc() && end == word.data() + word.size()) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace af
