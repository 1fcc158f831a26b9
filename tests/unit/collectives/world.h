// SPDX-License-Identifier: Apache-2.0
// Worlds for tests: ranks as threads of this process, or as forked processes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "collectives/store/store_server.h"

namespace af::test {

// One entry per rank: the pretended node that it is on ("" everywhere: one node).
using Nodes = std::vector<std::string>;
Nodes one_node(int ranks);
Nodes separate_nodes(int ranks);  // one rank on each
Nodes two_nodes(int ranks);  // uneven: all but one on the first, the last alone, from 3 ranks on

// Options of a rank, but for the store.
Options options_for(const Nodes& nodes, int rank,
                    std::chrono::milliseconds timeout = std::chrono::seconds(60));

// Runs `body` in one thread per rank with a communicator each. The first exception of any rank is
// thrown again here.
void with_threads(const Nodes& nodes, const std::function<void(Communicator&)>& body,
                  const std::function<void(Options&)>& adjust = {});

// Ranks as processes, with a store of their own.
class Processes {
 public:
  Processes();
  ~Processes();  // kills and reaps what is left

  // Forks. `body` runs in the child with the rank's options; what it returns is the child's text.
  // An exception's text comes back as "error KIND RANKS: what" (see error_text).
  void start(const Options& options, const std::function<std::string(const Options&)>& body);
  // What the rank returned, or "killed by signal N". Fails the test after the deadline.
  std::string result(int index, std::chrono::milliseconds deadline = std::chrono::seconds(30));
  void signal(int index, int number);
  // Blocks until the child has called say(): its text so far ends with a line.
  void await_line(int index) { await_text(index, "\n"); }
  void await_text(int index, const std::string& wanted);
  const std::string& text(int index) const { return children_[std::size_t(index)].text; }

 private:
  struct Child {
    pid_t pid = -1;
    int fd = -1;
    std::string text;
  };
  StoreServer server_;
  std::vector<Child> children_;
};

// In a child: one line to the parent, before the result.
void say(const std::string& line);
// "timeout [2]: ..."; what tests compare the beginning of.
std::string error_text(const CommunicatorError& error);

}  // namespace af::test
