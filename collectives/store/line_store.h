// SPDX-License-Identifier: Apache-2.0
// A store reached over a stream socket, one JSON object a line: the session protocol's `set` and
// `get`, which the agent of af-launch and TcpStore's rank 0 both speak.
#pragma once

#include <functional>
#include <mutex>

#include "af/store.h"
#include "common/unique_fd.h"

namespace af {

class LineStore : public Store {
 public:
  // `connect` opens the connection, non-blocking, or throws CommunicatorError (store). `where`: for
  // messages.
  LineStore(std::string where, std::function<UniqueFd()> connect);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  // Sends a request, waits for its reply and gives its text.
  std::string ask(const std::string& line, long id, std::chrono::milliseconds timeout);
  void send_all(const std::string& line);
  std::string next_line(std::chrono::steady_clock::time_point deadline);
  [[noreturn]] void fail(const std::string& why);

  const std::string where_;
  const std::function<UniqueFd()> connect_;
  std::mutex mutex_;  // one request at a time
  UniqueFd fd_;
  std::string received_;
  long next_id_ = 1;
};

}  // namespace af
