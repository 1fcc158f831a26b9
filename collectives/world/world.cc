// SPDX-License-Identifier: Apache-2.0
// The public face of WorldClient.
#include "af/world.h"

#include <cstdlib>

#include "collectives/world/client.h"

namespace af {

struct World::Impl : WorldClient {
  using WorldClient::WorldClient;
};

WorldOptions World::options_from_environment() {
  WorldOptions options;
  const char* socket = std::getenv("AF_SOCKET");
  const char* elastic = std::getenv("AF_ELASTIC");
  if (socket != nullptr) options.socket = socket;
  options.elastic = elastic != nullptr && std::string(elastic) == "1";
  options.communicator = Communicator::options_from_environment();
  return options;
}

World World::from_environment() {
  return World(options_from_environment());
}

World::World(const WorldOptions& options) : impl_(std::make_shared<Impl>(options)) {
  impl_->await_first(WorldClient::Wait::on);
}
World::World(World&&) noexcept = default;
World& World::operator=(World&&) noexcept = default;
World::~World() = default;

bool World::elastic() const {
  return impl_->elastic();
}
WorldView World::view() const {
  return impl_->view();
}
Communicator& World::communicator() {
  return impl_->communicator();
}
WorldFlags World::flags(bool at_checkpoint) const {
  return impl_->flags(at_checkpoint);
}
void World::agree(bool change, bool save) {
  impl_->agree(change, save);
}
bool World::should_change() const {
  return impl_->should_change();
}
bool World::should_save() const {
  return impl_->should_save();
}
bool World::lost() const {
  return impl_->lost();
}
std::optional<WorldNotice> World::notice() const {
  return impl_->notice();
}
World::Next World::next(std::int64_t completed, bool in_step) {
  return *impl_->next(completed, in_step, WorldClient::Wait::on);
}
void World::step_done(std::int64_t step) {
  impl_->step_done(step);
}
void World::finished() {
  impl_->finished();
}
void World::saved(const std::string& path, std::int64_t step) {
  impl_->saved(path, step);
}
void World::send(const std::string& json_line) {
  impl_->send(json_line);
}

}  // namespace af
