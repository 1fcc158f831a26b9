// SPDX-License-Identifier: Apache-2.0
// What the ranks of a NCCL communicator tell each other outside NCCL, through the Store: the unique
// id, who came, and, once an operation takes suspiciously long, how far each rank is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "af/communicator.h"

namespace af::nccl {

class Rendezvous {
 public:
  explicit Rendezvous(const Options& options);

  // Rank 0's id for all ranks, as raw bytes. Throws CommunicatorError naming rank 0 if it is late.
  std::string share_id(const std::string& own_id);
  // This rank is about to form the communicator.
  void came();
  // Ranks that have not said so; asks at most `wait` for all of them together.
  std::vector<int> not_come(std::chrono::milliseconds wait) noexcept;

  // This rank is stuck in operation `sequence`. Failures to say so are swallowed: the store may
  // have gone with its host, and that is not what the person has to hear about.
  void publish_progress(std::int64_t sequence) noexcept;
  // Ranks that are not in operation `sequence` or beyond, as far as they have said so by now.
  std::vector<int> behind(std::int64_t sequence, std::chrono::milliseconds wait) noexcept;

  void publish_abort(const std::string& reason) noexcept;
  // "rank 2: reason" if a rank has aborted, else empty.
  std::string aborted() noexcept;

 private:
  std::string key(const std::string& name) const { return prefix_ + name; }
  // Empty if it is not there in time.
  std::string try_get(const std::string& name, std::chrono::milliseconds wait) noexcept;

  const Options& options_;
  const std::string prefix_;
};

// 128 raw bytes as text for the store, and back. from_hex gives "" for what is not hex.
std::string to_hex(const std::string& bytes);
std::string from_hex(const std::string& text);

}  // namespace af::nccl
