// SPDX-License-Identifier: Apache-2.0
// A store reached over a stream socket, one JSON object a line: the session protocol's `set` and
// `get`, which the agent of af-launch and TcpStore's rank 0 both speak.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "af/store.h"
#include "collectives/cancel.h"
#include "common/unique_fd.h"

namespace af {

class LineStore : public Store {
 public:
  // `connect` opens the connection, non-blocking, or throws CommunicatorError (store). `where`: for
  // messages. When `cancel` is raised, requests end with CommunicatorError (aborted).
  LineStore(std::string where, std::function<UniqueFd()> connect,
            std::shared_ptr<const Cancel> cancel = nullptr);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  using Clock = std::chrono::steady_clock;

  // Sends a request, waits for its reply and gives its text.
  std::string ask(const std::string& line, long id, std::chrono::milliseconds timeout);
  void send_all(const std::string& line, Clock::time_point deadline);
  // Takes what has arrived and sorts replies by their request; waits for something at most until
  // the deadline. Called without the lock, by one thread at a time.
  void read_replies(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  [[noreturn]] void refuse(const std::string& why) const;
  // Drops the connection, then refuses; the next request opens a new one.
  [[noreturn]] void fail(const std::string& why);

  const std::string where_;
  const std::function<UniqueFd()> connect_;
  const std::shared_ptr<const Cancel> cancel_;
  // A get may wait for long, and what it waits for may be set by another thread of this process: so
  // requests overlap, and whoever waits reads for all.
  std::mutex mutex_;
  std::condition_variable changed_;
  UniqueFd fd_;
  long connection_ = 0;  // counts connections: a reply never comes over the next one
  bool reading_ = false;
  std::string received_;
  std::map<long, std::string> replies_;
  std::atomic<long> next_id_{1};
};

}  // namespace af
