// SPDX-License-Identifier: Apache-2.0
// The world of a rank under af-launch, which may change while the program runs: GPUs are taken
// back, and return. The process and what it has in memory stay; the Communicator is replaced.
//
//   af::World world = af::World::from_environment();
//   while (training) {
//     try {
//       reduce(world.communicator(), gradients, world.flags());   // adds flags of all ranks
//       world.agree(summed_flags);                                 // the same on all ranks
//       world.step_done(++step);
//       if (!world.should_change()) continue;                      // of communicator(): agreed
//     } catch (const af::CommunicatorError&) {}
//     if (world.next(step, in_step) == af::World::Next::leave) std::exit(0);
//     ... agree on the furthest step: world.view().members ...
//   }
//
// af::train::DataParallel (C++) and af.train.torch (Python) do this for a program; this header is
// for those who write such a thing themselves. The wire: docs/session-protocol.md.
//
// Without af-launch (torchrun, mpirun, alone), and under af-launch in a job of a fixed size, the
// world is what the environment says and never changes; save() may still be asked for.
//
// Threads. All methods may be called from any thread; next() and communicator() from one at a time.
// A thread `af-world` listens to the agent; it aborts the communicator of a world that is lost.
// After fork() the child's copy is silent.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "af/export.h"

namespace af {

// A rank of a world, as it was before.
struct WorldMember {
  int was = -1;            // rank in its previous world; -1: it was in none
  std::int64_t step = -1;  // steps of the training it has completed; -1: it has no state
  bool in_step = false;    // it had been dealt rows of step + 1 when it gave up that world
};

struct WorldView {
  std::uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  std::vector<WorldMember> members;  // by rank; in a first world all {-1, -1}
  // RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, … of this world. Not set in the process: setenv is
  // not safe beside other threads.
  std::map<std::string, std::string> environment;
};

// Bits that a rank adds to its next reduction, one element for each, and gets back summed up.
struct WorldFlags {
  bool change = false;  // the world is to change behind this step
  bool save = false;    // the job ends: save behind this step
};

struct WorldNotice {
  std::string reason;              // "preempted", "time limit"
  std::optional<double> deadline;  // seconds since 1970
  bool whole_job = false;
};

struct WorldOptions {
  std::string socket;          // of the agent, "@name"; empty: no agent
  bool elastic = false;        // the first world comes from the agent too
  Options communicator;        // for every generation: timeout, backend, name, device, address, …
  std::string client = "c++";  // who speaks: for the launcher's log
};

class AF_PUBLIC World {
 public:
  // AF_SOCKET, AF_ELASTIC, and what Communicator::options_from_environment() reads. In an elastic
  // run it blocks until the agent has given the first world; the other ranks of it wait for this
  // one at their first communicator(), so do what takes long before.
  // Throws CommunicatorError: kind store if the agent cannot be reached, kind aborted if this rank
  // is not needed after all (`leave` instead of a first world): exit with 0.
  static World from_environment();
  static WorldOptions options_from_environment();
  explicit World(const WorldOptions& options);
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  bool elastic() const;
  WorldView view() const;

  // Of the current generation, formed at the first call after a change (collective). The reference
  // is good until next(). Throws CommunicatorError; then call next().
  Communicator& communicator();

  // What the agent has asked for and the ranks have not agreed on yet. `at_checkpoint`: this
  // reduction belongs to a report with a checkpoint; otherwise a change that waits for one is not
  // in it.
  WorldFlags flags(bool at_checkpoint = false) const;
  // The sums of all ranks' flags: from now on should_change(), should_save() say the same on all.
  void agree(bool change, bool save);
  bool should_change() const;
  bool should_save() const;
  // The current world is lost: operations fail or will.
  bool lost() const;
  std::optional<WorldNotice> notice() const;

  enum class Next { formed, leave };
  // Gives up the current world (its communicator is destroyed; buffers stay as they are, but those
  // of a lost world are copied: let go of what is not needed, and write to none meanwhile), tells
  // the agent that `completed` steps are done (-1: no state) and whether rows of the next one have
  // been dealt to this rank, and waits for the next world. `leave`: this rank is in none: exit with
  // 0. Throws CommunicatorError (kind store) when the agent has gone, or if the world is not
  // elastic.
  Next next(std::int64_t completed, bool in_step);

  // One-way messages to the agent; nothing happens without one. They never block; where the agent
  // is slow they are sent later, and send() drops what exceeds 1 MiB.
  void step_done(std::int64_t step);  // cheap; tells the agent of the first one of a generation
  void finished();
  void saved(const std::string& path, std::int64_t step);
  void send(const std::string& json_line);  // report, checkpoint, options: an object, no newline

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace af
