// SPDX-License-Identifier: Apache-2.0
#include "launcher/gather.h"

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace af {

void Gather::add(int task, const std::string& text, std::shared_ptr<LineConnection> connection) {
  if (task < 0 || task >= tasks_)
    throw Error::format("a task {} joined a step of {} tasks", task, tasks_);
  texts_[task] = text;
  connections_[task] = std::move(connection);
  if (!complete()) return;
  const std::string all = nlohmann::json{{"texts", texts()}}.dump();
  for (auto& [number, peer] : connections_) {
    if (!peer) continue;
    peer->send(all);
    peer->close_when_sent();
  }
  connections_.clear();
}

std::vector<std::string> Gather::texts() const {
  std::vector<std::string> ordered;
  for (const auto& [task, text] : texts_) ordered.push_back(text);
  return ordered;
}

std::string Gather::missing() const {
  std::string names;
  int count = 0;
  for (int task = 0; task < tasks_; ++task) {
    if (texts_.contains(task)) continue;
    names += (names.empty() ? "" : ", ") + std::to_string(task);
    ++count;
  }
  return (count == 1 ? "task " : "tasks ") + names;
}

}  // namespace af
