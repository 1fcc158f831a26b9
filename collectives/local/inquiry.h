// SPDX-License-Identifier: Apache-2.0
// Asks ranks of other nodes what they wait for, so that a timeout names the rank at fault and not
// one that waits for it too. Their watchers answer, also while their own threads are blocked.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "collectives/local/handshake.h"

namespace af::local {

// Who is at fault, of `missing` ranks that an operation waits for: those that gave no answer, or
// wait for nobody; else whom the missing ones wait for; else (a circle) all of them. `answers`: by
// rank, what each that answered waits for. Ascending.
std::vector<int> culprits(int self, const std::vector<int>& missing,
                          const std::map<int, std::vector<int>>& answers);

class Inquiry {
 public:
  // Both must outlive it.
  Inquiry(int rank, const std::vector<Link>& links, const Waiting& waiting);

  // What this rank's exchange waits for now; empty if nothing.
  void set_waiting_for(const std::vector<int>& ranks);
  // Asks `missing` ranks and gives who is at fault.
  std::vector<int> find_culprits(const std::vector<int>& missing,
                                 std::chrono::milliseconds patience);
  // A question or an answer that came over a control connection. From the watcher.
  void receive(const Link& link, const FailureRecord& record);

 private:
  void send(const Link& link, std::uint32_t magic, const std::vector<int>& ranks);

  const int rank_;
  const std::vector<Link>& links_;
  const Waiting& waiting_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<int> waiting_for_;
  std::map<int, std::vector<int>> answers_;
};

}  // namespace af::local
