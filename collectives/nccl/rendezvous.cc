// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/rendezvous.h"

#include <algorithm>
#include <charconv>

#include "collectives/roll_call.h"

namespace af::nccl {

using Kind = CommunicatorError::Kind;
using std::chrono::milliseconds;

Rendezvous::Rendezvous(const Options& options)
    : options_(options),
      prefix_("nccl/" + std::to_string(options.generation) + "/" + options.name + "/") {}

std::string Rendezvous::share_id(const std::string& own_id) {
  if (options_.world_size == 1) return own_id;
  if (options_.rank == 0) {
    options_.store->set(key("id"), to_hex(own_id));
    return own_id;
  }
  try {
    std::string id = from_hex(options_.store->get(key("id"), options_.timeout));
    if (!id.empty()) return id;
  } catch (const CommunicatorError& error) {
    if (error.kind() != Kind::timeout) throw;
    throw CommunicatorError(Kind::timeout,
                            "nccl backend: rank " + std::to_string(options_.rank) +
                                " waited for rank 0's NCCL id, which did not come in time",
                            {0});
  }
  throw CommunicatorError(Kind::store, "nccl backend: rank 0's NCCL id in the store is damaged");
}

void Rendezvous::came() {
  if (options_.world_size > 1) {
    options_.store->set(key("came/" + std::to_string(options_.rank)), "1");
  }
}

std::vector<int> Rendezvous::not_come(milliseconds wait) noexcept {
  std::vector<int> missing;
  const milliseconds each = std::max(milliseconds(1), wait / options_.world_size);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank == options_.rank) continue;
    if (try_get("came/" + std::to_string(rank), each).empty()) missing.push_back(rank);
  }
  return missing;
}

void Rendezvous::publish_progress(std::int64_t sequence) noexcept {
  if (!options_.store) return;
  try {
    options_.store->set(key("progress/" + std::to_string(options_.rank)), std::to_string(sequence));
  } catch (...) {  // NOLINT(bugprone-empty-catch): see the header
  }
}

std::vector<int> Rendezvous::behind(std::int64_t sequence, milliseconds wait) noexcept {
  RollCall roll(options_.world_size, options_.rank, sequence);
  const milliseconds each = std::max(milliseconds(1), wait / options_.world_size);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank == options_.rank) continue;
    const std::string text = try_get("progress/" + std::to_string(rank), each);
    std::int64_t entered = -1;
    std::from_chars(text.data(), text.data() + text.size(), entered);
    roll.heard(rank, entered);
  }
  return roll.missing();
}

void Rendezvous::publish_abort(const std::string& reason) noexcept {
  if (!options_.store) return;
  try {
    options_.store->set(key("aborted"), "rank " + std::to_string(options_.rank) + ": " + reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): see the header
  }
}

std::string Rendezvous::aborted() noexcept {
  return try_get("aborted", milliseconds(1));
}

std::string Rendezvous::try_get(const std::string& name, milliseconds wait) noexcept {
  if (!options_.store) return {};
  try {
    return options_.store->get(key(name), wait);
  } catch (...) {
    return {};
  }
}

std::string to_hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const char* end = text.data() + std::min(i + 2, text.size());
    const auto [at, error] = std::from_chars(text.data() + i, end, value, 16);
    if (error != std::errc() || at != text.data() + i + 2) return {};
    bytes += static_cast<char>(value);
  }
  return bytes;
}

}  // namespace af::nccl
