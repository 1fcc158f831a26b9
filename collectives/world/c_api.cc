// SPDX-License-Identifier: Apache-2.0
// af_world_*: WorldClient for C, without exceptions.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>

#include "af/af.h"
#include "collectives/c_handles.h"
#include "collectives/world/client.h"

using af::c_api::guarded;
using af::c_api::keep;
using af::c_api::require;

struct af_world {
  explicit af_world(const af::WorldOptions& options) : client(options) {}

  af::WorldClient client;
  std::unique_ptr<af_communicator> communicator;  // of the current generation
};

namespace {

thread_local std::string text;  // what this thread was given last

const char* give(const std::string& value) noexcept {
  try {
    text = value;
  } catch (...) {
    text.clear();
  }
  return text.c_str();
}

int interrupted() {
  return keep(AF_ERROR_INTERRUPTED,
              "a signal came before there was a world; call again to wait on");
}

int bits(bool change, bool save, bool lost) {
  return (change ? AF_FLAG_CHANGE : 0) | (save ? AF_FLAG_SAVE : 0) | (lost ? AF_FLAG_LOST : 0);
}

}  // namespace

int af_world_open(const char* client, af_world** world) {
  // The agent has heard of a program that was interrupted while it waited for its first world: the
  // next call goes on with that one.
  static std::mutex mutex;
  static auto* const opening = new std::unique_ptr<af_world>;
  bool there = false;
  const int code = guarded([&] {
    require(world, "world");
    std::lock_guard lock(mutex);
    try {
      if (*opening == nullptr) {
        af::WorldOptions options = af::World::options_from_environment();
        if (client != nullptr) options.client = client;
        *opening = std::make_unique<af_world>(options);
      }
      there = (*opening)->client.await_first(af::WorldClient::Wait::until_signal);
    } catch (...) {
      opening->reset();
      throw;
    }
    if (there) *world = opening->release();
  });
  return code == AF_OK && !there ? interrupted() : code;
}

void af_world_close(af_world* world) {
  delete world;
}

int af_world_elastic(const af_world* world) {
  return world->client.elastic() ? 1 : 0;
}
uint64_t af_world_generation(const af_world* world) {
  return world->client.view().generation;
}
int af_world_rank(const af_world* world) {
  return world->client.view().rank;
}
int af_world_ranks(const af_world* world) {
  return world->client.view().world_size;
}

int af_world_members(const af_world* world, int* was, int64_t* step, int* in_step, int capacity) {
  const af::WorldView view = world->client.view();
  const int count = std::min(view.world_size, capacity);
  for (int rank = 0; rank < count; ++rank) {
    const af::WorldMember& member = view.members[std::size_t(rank)];
    if (was != nullptr) was[rank] = member.was;
    if (step != nullptr) step[rank] = member.step;
    if (in_step != nullptr) in_step[rank] = member.in_step ? 1 : 0;
  }
  return view.world_size;
}

const char* af_world_environment(const af_world* world) {
  return give(af::to_json(world->client.view().environment));
}

int af_world_communicator(af_world* world, af_communicator** communicator) {
  return guarded([&] {
    require(world, "world");
    require(communicator, "communicator");
    af::Communicator& formed = world->client.communicator();
    if (world->communicator == nullptr) {
      // Holds nothing: the world owns it.
      world->communicator.reset(
          new af_communicator{std::shared_ptr<af::Communicator>(std::shared_ptr<void>(), &formed)});
    }
    *communicator = world->communicator.get();
  });
}

int af_world_flags(const af_world* world, int at_checkpoint) {
  const af::WorldFlags flags = world->client.flags(at_checkpoint != 0);
  return bits(flags.change, flags.save, false);
}

void af_world_agree(af_world* world, int flags) {
  world->client.agree((flags & AF_FLAG_CHANGE) != 0, (flags & AF_FLAG_SAVE) != 0);
}

int af_world_agreed(const af_world* world) {
  return bits(world->client.should_change(), world->client.should_save(), world->client.lost());
}

const char* af_world_notice(const af_world* world) {
  const auto notice = world->client.notice();
  return give(notice ? af::to_json(*notice) : "");
}

int af_world_next(af_world* world, int64_t completed, int in_step, int* leave) {
  bool there = false;
  const int code = guarded([&] {
    require(world, "world");
    require(leave, "leave");
    world->communicator.reset();
    const auto next =
        world->client.next(completed, in_step != 0, af::WorldClient::Wait::until_signal);
    there = next.has_value();
    if (there) *leave = *next == af::World::Next::leave ? 1 : 0;
  });
  return code == AF_OK && !there ? interrupted() : code;
}

void af_world_step_done(af_world* world, int64_t step) {
  (void)guarded([&] { world->client.step_done(step); });
}
void af_world_finished(af_world* world) {
  (void)guarded([&] { world->client.finished(); });
}
void af_world_saved(af_world* world, const char* path, int64_t step) {
  (void)guarded([&] { world->client.saved(path == nullptr ? "" : path, step); });
}

int af_world_send(af_world* world, const char* json) {
  return guarded([&] {
    require(world, "world");
    require(json, "json");
    world->client.send(json);
  });
}
