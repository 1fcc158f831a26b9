// SPDX-License-Identifier: Apache-2.0
#include "collectives/world/messages.h"

#include <nlohmann/json.hpp>

namespace af {
namespace {

using nlohmann::json;

[[noreturn]] void reject(const std::string& line, const std::string& why) {
  throw CommunicatorError(
      CommunicatorError::Kind::store,
      "the launcher's agent said what makes no sense (" + why + "): " + line.substr(0, 200));
}

// A path need not be UTF-8; dump() would throw.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<double> deadline_of(const json& event) {
  const auto found = event.find("deadline");
  if (found == event.end() || found->is_null()) return std::nullopt;
  return found->get<double>();
}

WorldView world_of(const json& event) {
  WorldView view;
  view.generation = event.at("generation").get<std::uint64_t>();
  view.rank = event.at("rank").get<int>();
  view.world_size = event.at("world_size").get<int>();
  const json members = event.value("members", json::array());
  for (const json& member : members) {
    view.members.push_back({member.value("was", -1), member.value("step", std::int64_t(-1)),
                            member.value("in_step", false)});
  }
  const auto environment = event.find("environment");
  if (environment != event.end()) {
    view.environment = environment->get<std::map<std::string, std::string>>();
  }
  return view;
}

}  // namespace

Event parse_event(const std::string& line) {
  const json said = json::parse(line, nullptr, false);
  if (!said.is_object()) reject(line, "not a JSON object");
  Event event;
  try {
    const auto name = said.find("event");
    if (name == said.end()) return event;
    if (*name == "change") {
      event.kind = Event::Kind::change;
      event.at_checkpoint = said.value("when", "step") == "checkpoint";
    } else if (*name == "lost") {
      event.kind = Event::Kind::lost;
      event.generation = said.at("generation").get<std::uint64_t>();
      event.why = said.value("why", "");
    } else if (*name == "world") {
      event.kind = Event::Kind::world;
      event.world = world_of(said);
    } else if (*name == "leave") {
      event.kind = Event::Kind::leave;
      event.why = said.value("why", "");
    } else if (*name == "notice" || *name == "save") {
      event.kind = *name == "save" ? Event::Kind::save : Event::Kind::notice;
      event.why = said.value("reason", "");
      event.deadline = deadline_of(said);
      event.whole_job = event.kind == Event::Kind::save || said.value("all", false);
    }
  } catch (const json::exception& error) {
    reject(line, error.what());
  }
  const WorldView& world = event.world;
  if (event.kind == Event::Kind::world) {
    if (world.world_size < 1 || world.rank < 0 || world.rank >= world.world_size) {
      reject(line, "the rank is not in the world");
    }
    if (!world.members.empty() && world.members.size() != std::size_t(world.world_size)) {
      reject(line, "as many members as ranks are due");
    }
    event.world.members.resize(std::size_t(world.world_size));
  }
  return event;
}

std::string hello_line(const std::string& client) {
  return text_of({{"op", "hello"}, {"client", client}});
}

std::string arrive_line(std::int64_t generation, std::int64_t step, bool in_step) {
  return text_of(
      {{"op", "arrive"}, {"generation", generation}, {"step", step}, {"in_step", in_step}});
}

std::string first_step_line(std::uint64_t generation, std::int64_t step) {
  return text_of({{"op", "first_step"}, {"generation", generation}, {"step", step}});
}

std::string finished_line() {
  return text_of({{"op", "finished"}});
}

std::string saved_line(const std::string& path, std::int64_t step) {
  return text_of({{"op", "saved"}, {"path", path}, {"step", step}});
}

bool is_object_line(const std::string& line) {
  return line.find('\n') == std::string::npos && json::parse(line, nullptr, false).is_object();
}

std::string to_json(const WorldNotice& notice) {
  json value = {{"reason", notice.reason}, {"deadline", nullptr}, {"all", notice.whole_job}};
  if (notice.deadline) value["deadline"] = *notice.deadline;
  return text_of(value);
}

std::string to_json(const std::map<std::string, std::string>& texts) {
  return text_of(json(texts));
}

}  // namespace af
