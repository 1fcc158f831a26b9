// SPDX-License-Identifier: Apache-2.0
// Tells the run what the training does: reports and checkpoints, for its journal (events.jsonl).
//
// The way is AF_SOCKET, the Unix socket of the rank's agent; one JSON object a line, one way, no
// reply. Without AF_SOCKET (no af-launch) nothing happens. Never blocks and never throws: a
// training must not stop because nobody listens. What the socket does not take at once is kept, up
// to 1 MiB; beyond that lines are dropped, whole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "af/export.h"

namespace af::train {

// Thread-safe. In a child after fork() it is silent: the connection belongs to the parent.
class AF_PUBLIC Session {
 public:
  // To the agent that AF_SOCKET names; "@name" is an abstract socket.
  static Session from_environment();
  // An empty text: no connection.
  explicit Session(const std::string& socket);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  bool connected() const;

  // Metrics that are not finite travel as null: JSON has no other way.
  void report(int64_t step, int64_t epoch, const std::map<std::string, double>& metrics);
  // A checkpoint is complete at `path`; `seconds` is what it took.
  void checkpoint(const std::string& path, int64_t step, double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace af::train
