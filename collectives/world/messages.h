// SPDX-License-Identifier: Apache-2.0
// The lines of a control connection (docs/session-protocol.md), as values. No effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "af/world.h"

namespace af {

struct Event {
  enum class Kind { none, change, lost, world, leave, notice, save };
  Kind kind = Kind::none;
  bool at_checkpoint = false;      // change
  std::uint64_t generation = 0;    // lost
  std::string why;                 // lost, leave; the reason of notice and save
  std::optional<double> deadline;  // notice, save: seconds since 1970
  bool whole_job = false;          // notice
  WorldView world;                 // world
};

// Kind none: a reply, or an event of a later version. Throws CommunicatorError (store) for a line
// that cannot be what an agent says.
Event parse_event(const std::string& line);

// Without the newline. `generation` -1: of no world yet.
std::string hello_line(const std::string& client);
std::string arrive_line(std::int64_t generation, std::int64_t step, bool in_step);
std::string first_step_line(std::uint64_t generation, std::int64_t step);
std::string finished_line();
std::string saved_line(const std::string& path, std::int64_t step);

// An object in one line, as World::send() takes it.
bool is_object_line(const std::string& line);

// {"reason", "deadline" or null, "all"}, and an object of texts.
std::string to_json(const WorldNotice& notice);
std::string to_json(const std::map<std::string, std::string>& texts);

}  // namespace af
