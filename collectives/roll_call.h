// SPDX-License-Identifier: Apache-2.0
// Who is missing in an operation that does not end: pure bookkeeping for backends whose library
// cannot tell (MPI, NCCL). A rank that hears "where are you?" answers with the number of the last
// operation that it entered; one that says nothing, or is behind, is the one the others wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace af {

class RollCall {
 public:
  // `sequence`: the operation in question; `rank` itself is in it.
  RollCall(int world_size, int rank, std::int64_t sequence);
  // Rank `rank` said that it has entered operation `sequence`. Ranks out of range are ignored.
  void heard(int rank, std::int64_t sequence);
  bool complete() const;             // nobody is missing
  std::vector<int> missing() const;  // ascending

 private:
  std::int64_t sequence_;
  std::vector<std::int64_t> entered_;
};

// "rank 2", "ranks 1 and 3", "ranks 1, 3 and 4"; "no rank" if empty.
std::string rank_list(const std::vector<int>& ranks);

// "3 s", "0.25 s".
std::string seconds_text(std::chrono::milliseconds time);

// Throws the CommunicatorError (timeout) of an operation that has waited for `timeout`; `where`
// says which one and on which rank. `missing` may be empty: all came, and still it does not end.
[[noreturn]] void throw_timeout(const std::string& where, std::chrono::milliseconds timeout,
                                const std::vector<int>& missing);

// For messages between ranks: "1,3,4" and back; what is not a number is left out.
std::string ranks_to_text(const std::vector<int>& ranks);
std::vector<int> ranks_from_text(const std::string& text);

}  // namespace af
