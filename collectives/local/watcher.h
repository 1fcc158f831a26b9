// SPDX-License-Identifier: Apache-2.0
// A thread that sleeps in poll() on the control connections and notices, while others compute or
// wait, that a rank died or that it reports a failure, or that the world has been called off.
#pragma once

#include <thread>
#include <vector>

#include "collectives/local/alarm.h"
#include "collectives/local/handshake.h"
#include "collectives/local/inquiry.h"

namespace af::local {

class Watcher {
 public:
  // All arguments must outlive it; `cancel` may be null.
  Watcher(const std::vector<Link>& links, int rank, Alarm& alarm, Inquiry& inquiry,
          const Cancel* cancel);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void watch();
  // False once the connection has ended.
  bool read_control(std::size_t link);

  const std::vector<Link>& links_;
  const int rank_;
  Alarm& alarm_;
  Inquiry& inquiry_;
  const Cancel* const cancel_;
  UniqueFd stop_;
  std::vector<FailureRecord> records_;  // being received, by link
  std::vector<std::size_t> got_;        // bytes of it
  std::thread thread_;
};

}  // namespace af::local
