// SPDX-License-Identifier: Apache-2.0
// What is behind af::World and af_world: a rank's side of the session protocol.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "af/world.h"
#include "collectives/world/control_connection.h"
#include "collectives/world/generation.h"
#include "collectives/world/messages.h"

namespace af {

class WorldClient {
 public:
  // Waiting for a world may end when a signal handler has run: a Python program's own handlers run
  // only when its thread is back in Python.
  enum class Wait { on, until_signal };

  // Connects and says hello; in an elastic run it arrives, and await_first() gets the world.
  explicit WorldClient(const WorldOptions& options);
  ~WorldClient();
  WorldClient(const WorldClient&) = delete;
  WorldClient& operator=(const WorldClient&) = delete;

  // False: a signal came; call again. Throws CommunicatorError, kind aborted if this rank is not
  // needed.
  bool await_first(Wait wait);
  // As World::next(). None: a signal came; call again.
  std::optional<World::Next> next(std::int64_t completed, bool in_step, Wait wait);

  bool elastic() const { return options_.elastic; }
  WorldView view() const { return current()->view(); }
  Communicator& communicator();
  WorldFlags flags(bool at_checkpoint) const;
  void agree(bool change, bool save);
  bool should_change() const;
  bool should_save() const;
  bool lost() const;
  std::optional<WorldNotice> notice() const;
  void step_done(std::int64_t step);
  void finished();
  void saved(const std::string& path, std::int64_t step);
  void send(const std::string& json_line);

 private:
  bool in_child() const;  // after a fork: this copy is silent
  std::shared_ptr<Generation> current() const;
  void on_event(const Event& event);
  void on_end(const std::string& why);
  // None: a signal came.
  std::optional<World::Next> await(Wait wait);
  Options communicator_options(const Generation& generation) const;

  WorldOptions options_;
  const pid_t owner_;
  UniqueFd woken_;  // next() sleeps on it
  mutable std::mutex mutex_;
  std::shared_ptr<Generation> current_;  // null before the first world of an elastic run
  Wishes wishes_;                        // of current_
  // The world that the agent has given and next() has not taken yet, and what was asked of it.
  std::shared_ptr<Generation> coming_;
  Wishes coming_wishes_;
  std::optional<std::string> leave_;  // why
  std::optional<std::string> gone_;   // why nothing more comes from the agent
  std::optional<WorldNotice> notice_;
  std::int64_t first_step_told_ = -1;           // generation
  bool arrived_ = false;                        // told that current_ is done with
  std::unique_ptr<ControlConnection> control_;  // last: its thread uses the rest
};

}  // namespace af
