// SPDX-License-Identifier: Apache-2.0
// The border between libaf_collectives and libaf_collectives_mpi.so, the only file that needs MPI.
//
// libmpi must not be a dependency of the library: most programs that use it never see MPI, and
// sites without MPI run it too. So the module is loaded when the mpi backend is asked for, and
// hands out this interface. No type of MPI crosses it; failures cross as std::runtime_error, whose
// type both sides take from libstdc++.
//
// Thread-safety: none. The caller holds one lock around every call; none of them blocks, except the
// first open() of a process (MPI_Init).
#pragma once

#include <cstdint>
#include <string>

#include "collectives/backend.h"

namespace af {

// A message beside the operations: who waits where, and who gave up.
struct MpiNotice {
  enum class Kind : std::int32_t {
    query = 0,    // the sender waits in operation `sequence`: where are you?
    answer = 1,   // the sender has entered operation `sequence`
    gave_up = 2,  // the sender stops waiting; ranks(): for whom
    aborted = 3,  // abort() was called on the sender; text: why
  };
  static constexpr int kTextBytes = 232;

  Kind kind = Kind::query;
  std::int32_t sender = 0;
  std::int64_t sequence = 0;
  char text[kTextBytes] = {};
};

class MpiTransport {
 public:
  // From which threads MPI may be called, by what it was initialised for: the one that made the
  // transport; any, but never beside a call of the program's own (so no thread of ours); any.
  enum class Threads { one, serialized, any };

  virtual ~MpiTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Threads threads() const = 0;
  virtual std::string version() const = 0;  // "Open MPI v4.1.4"

  // Begins to make the communicators of this transport (collective); complete when test() is true.
  virtual void start_setup() = 0;
  // Begins one operation. One at a time; buffers stay until test() has returned true. All counts
  // fit an int. Reductions: sum, min, max of types that MPI knows (no f16, no bf16). In place as in
  // the public interface, but not for reduce_scatter, whose buffers must not overlap.
  virtual void start(const Operation& operation) = 0;
  // True when what was started is done.
  virtual bool test() = 0;

  virtual void send(int rank, const MpiNotice& notice) = 0;
  virtual bool receive(MpiNotice* notice) = 0;  // false: none has come
  // After a failure: MPI_Finalize would wait for ranks that never come, so it is left out at exit.
  virtual void mark_broken() = 0;
};

// The module's entry point; the caller owns the result. Initialises MPI if the program has not.
constexpr const char* kMpiModuleEntry = "af_mpi_transport_open";
using MpiModuleOpen = MpiTransport* (*)();

}  // namespace af
