// SPDX-License-Identifier: Apache-2.0
#include "collectives/world/client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "collectives/environment.h"
#include "collectives/local/identity.h"
#include "collectives/local/socket.h"
#include "collectives/store/session_store.h"

namespace af {
namespace {

using Kind = CommunicatorError::Kind;

// The world that the environment describes: it is there at once and stays.
WorldView fixed_view(const Options& options) {
  WorldView view;
  view.generation = options.generation;
  view.rank = options.rank;
  view.world_size = options.world_size;
  view.members.resize(std::size_t(options.world_size));
  for (const char* name :
       {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
        "AF_RUN_ID", "AF_ATTEMPT", "AF_BACKEND", "AF_GENERATION"}) {
    if (const char* value = std::getenv(name)) view.environment[name] = value;
  }
  view.environment["RANK"] = std::to_string(options.rank);
  view.environment["WORLD_SIZE"] = std::to_string(options.world_size);
  return view;
}

}  // namespace

WorldClient::WorldClient(const WorldOptions& options)
    : options_(options), owner_(getpid()), woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!woken_) {
    throw CommunicatorError(Kind::system,
                            std::string("cannot make an eventfd: ") + std::strerror(errno));
  }
  if (options_.elastic && options_.socket.empty()) {
    throw CommunicatorError(Kind::invalid_argument,
                            "an elastic world needs the launcher's socket (AF_SOCKET): start the "
                            "program with af-launch");
  }
  if (!options_.elastic) {
    current_ = std::make_shared<Generation>(fixed_view(options_.communicator));
  }
  if (options_.socket.empty()) return;
  control_ = std::make_unique<ControlConnection>(
      options_.socket, [this](const std::string& line) { on_event(parse_event(line)); },
      [this](const std::string& why) { on_end(why); });
  control_->send(hello_line(options_.client));
  if (options_.elastic) control_->send(arrive_line(-1, -1, false));
}

WorldClient::~WorldClient() {
  if (in_child()) {
    // The thread does not exist here, and the fork has closed the connection.
    (void)control_.release();
    return;
  }
  control_.reset();
}

bool WorldClient::in_child() const {
  return getpid() != owner_;
}

std::shared_ptr<Generation> WorldClient::current() const {
  // In a child the lock may be held for ever by a thread that is not there. current_ is changed by
  // next() only, which is not at work in a thread that forks.
  if (in_child()) return current_;
  std::lock_guard lock(mutex_);
  return current_;
}

void WorldClient::on_event(const Event& event) {
  std::shared_ptr<Generation> lost;
  {
    std::lock_guard lock(mutex_);
    // Events are in order: behind a `world` they mean that one, even if next() has not seen it yet.
    Wishes& wishes = coming_ != nullptr ? coming_wishes_ : wishes_;
    switch (event.kind) {
      case Event::Kind::none:
        return;
      case Event::Kind::change:
        wishes.ask_change(event.at_checkpoint);
        return;
      case Event::Kind::lost:
        for (const auto& generation : {current_, coming_}) {
          if (generation && generation->view().generation == event.generation) lost = generation;
        }
        break;
      case Event::Kind::world: {
        Wishes fresh;
        // The job's end outlives a world.
        if (wishes.save_asked()) fresh.ask_save();
        coming_ = std::make_shared<Generation>(event.world);
        coming_wishes_ = fresh;
        break;
      }
      case Event::Kind::leave:
        leave_ = event.why;
        break;
      case Event::Kind::notice:
        notice_ = WorldNotice{event.why, event.deadline, event.whole_job};
        return;
      case Event::Kind::save:
        wishes.ask_save();
        notice_ = WorldNotice{event.why, event.deadline, true};
        return;
    }
  }
  if (lost != nullptr) {
    lost->abort("generation " + std::to_string(event.generation) + " is lost" +
                (event.why.empty() ? "" : ": " + event.why));
    return;
  }
  eventfd_write(woken_.get(), 1);
}

void WorldClient::on_end(const std::string& why) {
  std::shared_ptr<Generation> orphaned;
  {
    std::lock_guard lock(mutex_);
    gone_ = why;
    // Without its agent this rank is in no world: the others are told that it is lost. One of a
    // fixed size is ended by its launcher, if at all.
    if (options_.elastic) orphaned = current_;
  }
  if (orphaned != nullptr) orphaned->abort("the launcher's agent has gone: " + why);
  eventfd_write(woken_.get(), 1);
}

std::optional<World::Next> WorldClient::await(Wait wait) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (leave_) return World::Next::leave;
      if (gone_) {
        throw CommunicatorError(Kind::store, "no next world: the launcher's agent at " +
                                                 options_.socket + " has gone: " + *gone_);
      }
      if (coming_ != nullptr) {
        current_ = std::move(coming_);
        coming_ = nullptr;
        wishes_ = coming_wishes_;
        arrived_ = false;
        return World::Next::formed;
      }
    }
    pollfd polled = {woken_.get(), POLLIN, 0};
    const int ready = poll(&polled, 1, -1);
    if (ready < 0 && errno == EINTR && wait == Wait::until_signal) return std::nullopt;
    eventfd_t ignored = 0;
    eventfd_read(woken_.get(), &ignored);
  }
}

bool WorldClient::await_first(Wait wait) {
  if (current() != nullptr) return true;
  const auto next = await(wait);
  if (!next) return false;
  if (*next == World::Next::formed) return true;
  std::lock_guard lock(mutex_);
  throw CommunicatorError(Kind::aborted, "this rank is not needed: " + *leave_);
}

std::optional<World::Next> WorldClient::next(std::int64_t completed, bool in_step, Wait wait) {
  if (in_child()) {
    throw CommunicatorError(Kind::invalid_argument, "a world cannot change in a forked child");
  }
  if (!options_.elastic) {
    throw CommunicatorError(Kind::store,
                            "this world is of a fixed size (AF_ELASTIC is not set): there is no "
                            "next one");
  }
  const auto old = current();
  old->drop();
  if (!arrived_) {
    arrived_ = true;
    control_->send(arrive_line(std::int64_t(old->view().generation), completed, in_step));
  }
  return await(wait);
}

Options WorldClient::communicator_options(const Generation& generation) const {
  Options options = options_.communicator;
  const WorldView& view = generation.view();
  if (options_.elastic) {
    options.rank = view.rank;
    options.world_size = view.world_size;
    options.generation = view.generation;
    options.store = nullptr;
    if (view.environment.count("AF_BACKEND") != 0) {
      options.backend = backend_under_af_launch([&view](const char* name) {
        const auto found = view.environment.find(name);
        return found == view.environment.end() ? nullptr : found->second.c_str();
      });
    }
    const auto master = view.environment.find("MASTER_ADDR");
    if (options.address.empty() && master != view.environment.end() && view.world_size > 1) {
      options.address = local::own_address(master->second);
    }
  }
  if (options.store == nullptr && options.world_size > 1 && !options_.socket.empty()) {
    options.store = make_session_store(options_.socket, generation.cancel());
  }
  return options;
}

Communicator& WorldClient::communicator() {
  if (in_child()) {
    throw CommunicatorError(Kind::invalid_argument,
                            "a communicator cannot be used in a forked child");
  }
  const auto generation = current();
  Communicator& formed = generation->communicator(communicator_options(*generation));
  // A store that rank 0 serves ends when all have let go of it.
  options_.communicator.store.reset();
  return formed;
}

WorldFlags WorldClient::flags(bool at_checkpoint) const {
  if (in_child()) return {};
  std::lock_guard lock(mutex_);
  return wishes_.flags(at_checkpoint);
}

void WorldClient::agree(bool change, bool save) {
  if (in_child()) return;
  std::lock_guard lock(mutex_);
  wishes_.agree(change, save);
}

bool WorldClient::should_change() const {
  if (in_child()) return false;
  std::lock_guard lock(mutex_);
  return wishes_.change_agreed();
}

bool WorldClient::should_save() const {
  if (in_child()) return false;
  std::lock_guard lock(mutex_);
  return wishes_.save_agreed();
}

bool WorldClient::lost() const {
  if (in_child()) return false;
  const auto generation = current();
  return generation != nullptr && generation->cancel()->raised();
}

std::optional<WorldNotice> WorldClient::notice() const {
  if (in_child()) return std::nullopt;
  std::lock_guard lock(mutex_);
  return notice_;
}

void WorldClient::step_done(std::int64_t step) {
  if (control_ == nullptr || in_child()) return;
  std::lock_guard lock(mutex_);
  const std::uint64_t generation = current_->view().generation;
  if (first_step_told_ == std::int64_t(generation)) return;
  first_step_told_ = std::int64_t(generation);
  control_->send(first_step_line(generation, step));
}

void WorldClient::finished() {
  if (control_ != nullptr) control_->send(finished_line());
}

void WorldClient::saved(const std::string& path, std::int64_t step) {
  if (control_ != nullptr) control_->send(saved_line(path, step));
}

void WorldClient::send(const std::string& json_line) {
  if (!is_object_line(json_line)) {
    throw CommunicatorError(Kind::invalid_argument,
                            "not a JSON object in one line: " + json_line.substr(0, 200));
  }
  if (control_ != nullptr) control_->send(json_line, true);
}

}  // namespace af
