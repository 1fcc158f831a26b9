// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/inquiry.h"

#include <sys/socket.h>

#include <algorithm>
#include <set>

namespace af::local {

std::vector<int> culprits(int self, const std::vector<int>& missing,
                          const std::map<int, std::vector<int>>& answers) {
  std::set<int> found;
  for (int rank : missing) {
    const auto answer = answers.find(rank);
    if (answer == answers.end() || answer->second.empty()) found.insert(rank);
  }
  if (found.empty()) {
    for (int rank : missing) {
      for (int other : answers.at(rank)) {
        if (other != self && answers.count(other) == 0) found.insert(other);
      }
    }
  }
  if (found.empty()) found.insert(missing.begin(), missing.end());
  return {found.begin(), found.end()};
}

Inquiry::Inquiry(int rank, const std::vector<Link>& links, const Waiting& waiting)
    : rank_(rank), links_(links), waiting_(waiting) {}

void Inquiry::set_waiting_for(const std::vector<int>& ranks) {
  std::lock_guard lock(mutex_);
  waiting_for_ = ranks;
}

std::vector<int> Inquiry::find_culprits(const std::vector<int>& missing,
                                        std::chrono::milliseconds patience) {
  {
    std::lock_guard lock(mutex_);
    answers_.clear();
  }
  for (const Link& link : links_) {
    if (std::find(missing.begin(), missing.end(), link.rank) == missing.end()) continue;
    send(link, FailureRecord::kAsk, {});
  }
  std::unique_lock lock(mutex_);
  answered_.wait_for(lock, patience, [&] { return answers_.size() >= missing.size(); });
  return culprits(rank_, missing, answers_);
}

void Inquiry::receive(const Link& link, const FailureRecord& record) {
  if (record.magic == FailureRecord::kAsk) {
    std::vector<int> ranks;
    {
      std::lock_guard lock(mutex_);
      ranks = waiting_for_;
    }
    if (ranks.empty() && waiting_.blocked_on() >= 0) ranks = {waiting_.blocked_on()};
    return send(link, FailureRecord::kAnswer, ranks);
  }
  const std::size_t count = std::min<std::size_t>(record.rank_count, std::size(record.ranks));
  std::lock_guard lock(mutex_);
  answers_[link.rank] = std::vector<int>(record.ranks, record.ranks + count);
  answered_.notify_all();
}

void Inquiry::send(const Link& link, std::uint32_t magic, const std::vector<int>& ranks) {
  FailureRecord record;
  record.magic = magic;
  record.origin = rank_;
  record.rank_count = std::uint32_t(std::min(ranks.size(), std::size(record.ranks)));
  std::copy_n(ranks.begin(), record.rank_count, record.ranks);
  (void)!::send(link.control.get(), &record, sizeof(record), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace af::local
