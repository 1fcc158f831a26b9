// SPDX-License-Identifier: Apache-2.0
// The all-gather of the TCP bootstrap, at its hub: keeps each task's text and connection until all
// have arrived, then sends everybody everything.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "launcher/line_connection.h"

namespace af {

class Gather {
 public:
  explicit Gather(int tasks) : tasks_(tasks) {}

  // A task's text; its connection is answered and closed when all are there (null: the hub's own).
  // A task that comes twice replaces itself. Throws Error for a task number that cannot be.
  void add(int task, const std::string& text, std::shared_ptr<LineConnection> connection);

  bool complete() const { return static_cast<int>(texts_.size()) == tasks_; }
  std::vector<std::string> texts() const;  // by task; complete() only
  std::string missing() const;             // "task 2", "tasks 1, 3": for the person
  int present() const { return static_cast<int>(texts_.size()); }

 private:
  int tasks_;
  std::map<int, std::string> texts_;
  std::map<int, std::shared_ptr<LineConnection>> connections_;
};

}  // namespace af
