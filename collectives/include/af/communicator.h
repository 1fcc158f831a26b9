// SPDX-License-Identifier: Apache-2.0
// Collective operations between the ranks of one world, over af's own host backend, MPI or NCCL.
//
//   af::Communicator world = af::Communicator::from_environment();
//   af::Buffer bucket = world.allocate(count * sizeof(float));
//   float* gradients = static_cast<float*>(bucket.data());
//   ...
//   af::Work work = world.all_reduce(gradients, gradients, count, af::DataType::f32);
//   ...
//   work.synchronize();
//
// Shapes. Counts are in elements of the given type, sizes named `bytes` in bytes. Buffers are raw
// and contiguous; they need the alignment of their type only. They stay the caller's, and must
// neither move nor change until the operation is done.
//
// Order. All ranks issue the same operations, allocate() included, in the same order on a
// communicator. A difference in kind, type, count, op or root is an error that names the
// rank and both calls (the mpi and nccl backends do not notice it).
//
// Threads. Every method may be called from any thread; abort() also while others are blocked. Two
// threads that issue operations at once must agree on the order with the other ranks themselves.
//
// Errors. Every failure is a CommunicatorError; wrong arguments throw at the call, everything else
// from Work::wait() and Work::synchronize() (or from the call, if the operation ran there). After a
// failure other than invalid_argument the communicator is broken: each later call throws the first
// reason. Buffers then hold unspecified values; what was only an `in` buffer is unchanged. Form a
// new communicator, of the next generation, to go on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "af/export.h"
#include "af/store.h"

namespace af {

// The numbers are part of the C API and of the wire format.
enum class DataType : int {
  i8 = 0,
  u8 = 1,
  i32 = 2,
  u32 = 3,
  i64 = 4,
  u64 = 5,
  f16 = 6,   // IEEE half; sums are kept in f32 inside a node and rounded once
  bf16 = 7,  // likewise
  f32 = 8,
  f64 = 9,
};
AF_PUBLIC std::size_t size_of(DataType type);  // bytes of one element
AF_PUBLIC const char* name_of(DataType type);  // "f32"

// Integer sums wrap; an integer average is truncated towards zero. A floating average is
// sum / world size. min and max with a NaN among the values: one of the values, unspecified which.
enum class ReduceOp : int { sum = 0, avg = 1, min = 2, max = 3 };
AF_PUBLIC const char* name_of(ReduceOp op);

enum class BackendKind : int {
  automatic = 0,  // nccl for a device, local for host memory
  local = 1,      // shared memory inside a node, TCP between; device memory is staged through it
  mpi = 2,        // only in programs started by mpirun or srun --mpi, never under af-launch
  nccl = 3,       // device memory only
};
AF_PUBLIC const char* name_of(BackendKind kind);

class AF_PUBLIC CommunicatorError : public std::runtime_error {
 public:
  enum class Kind : int {
    invalid_argument = 1,  // this call only; the communicator is still good
    timeout = 2,           // ranks() did not take part in time
    peer_lost = 3,         // ranks() died, left or closed their connection
    mismatch = 4,          // ranks() issued another operation than this rank
    aborted = 5,           // abort() was called, here or by ranks()
    store = 6,             // the rendezvous failed
    system = 7,            // memory, descriptors, a library (MPI, NCCL, CUDA) failed
  };
  CommunicatorError(Kind kind, const std::string& what, std::vector<int> ranks = {});
  ~CommunicatorError() override;
  Kind kind() const { return kind_; }
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  Kind kind_;
  std::vector<int> ranks_;
};

// A cudaStream_t, as void* so that this header needs no CUDA. nullptr is the default stream.
// Host memory has no streams: there it is ignored.
using Stream = void*;

// What any operation may be given beside its buffers.
struct CallOptions {
  // Device memory: the operation starts after what was put on this stream before.
  Stream stream = nullptr;
  // Every input element is multiplied by it before the reduction. It may differ between ranks
  // (averages by samples: own samples / all samples, with sum). Whole numbers only for integers.
  double pre_scale = 1.0;
  // The call returns when the result is in `out`, and runs on the calling thread where it can: for
  // callers who would wait at once anyway. Not within a group.
  bool blocking = false;
};

class WorkState;  // internal

// A handle of an operation in flight. Cheap to copy; a default-made one is done. It may outlive
// its communicator. Letting go of it does not cancel the operation.
class AF_PUBLIC Work {
 public:
  Work();
  explicit Work(std::shared_ptr<WorkState> state, std::uint64_t generation);
  Work(const Work&);
  Work& operator=(const Work&);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  // True if done or failed; never blocks, never throws.
  bool done() const;
  // Puts on `stream` a wait for the result, so that later work there sees it; blocks the host only
  // as long as that needs (host memory: until done, as there is no stream to wait on).
  void wait(Stream stream = nullptr) const;
  // Blocks the host until the result is in `out`.
  void synchronize() const;
  // Of the communicator that issued it.
  std::uint64_t generation() const { return generation_; }

 private:
  std::shared_ptr<WorkState> state_;
  std::uint64_t generation_ = 0;
};

class Memory;  // internal
class Cancel;  // internal

// Memory from Communicator::allocate(). Freed when the last copy goes; it stays readable and
// writable after the communicator broke or went (then no longer reduced in place without a copy).
class AF_PUBLIC Buffer {
 public:
  Buffer();
  explicit Buffer(std::shared_ptr<Memory> memory);
  Buffer(const Buffer&);
  Buffer& operator=(const Buffer&);
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  void* data() const;         // page-aligned, zeroed at first; null if default-made
  std::size_t bytes() const;  // as asked for

 private:
  std::shared_ptr<Memory> memory_;
};

struct Options {
  int rank = 0;
  int world_size = 1;
  // Which world of the run this is. Ranks of different generations never talk to each other.
  std::uint64_t generation = 0;
  // How long any one operation, and the rendezvous, may wait for other ranks. A rank that died is
  // noticed at once; this is for ranks that hang.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  BackendKind backend = BackendKind::automatic;
  // The same table for all ranks; may be null in a world of one.
  std::shared_ptr<Store> store;
  // Tells apart communicators that share a store and a generation (one per device, sub-groups).
  std::string name = "world";
  // CUDA device of this communicator's buffers; -1: host memory.
  int device = -1;
  // False: every operation runs on the calling thread and is done when the call returns. True:
  // those over 64 KiB run on a thread of the communicator, which overlaps with computing where
  // there are spare cores (12-25 us more for each operation where there are not).
  bool progress_thread = true;
  // Address that other nodes reach this rank at; empty: the one with which this host speaks to
  // MASTER_ADDR, else the first that is not loopback.
  std::string address;
  // Ranks with different texts are treated as being on different nodes; for tests. Empty: the
  // truth.
  std::string node_identity;
  // Set by af::World only, which ends the forming of a world that is lost meanwhile.
  std::shared_ptr<const Cancel> cancel;
};

class AF_PUBLIC Communicator {
 public:
  // Meets the other ranks in options.store. Collective: blocks until all ranks came, and throws
  // naming those that did not within options.timeout.
  explicit Communicator(const Options& options);
  // Under af-launch: RANK, WORLD_SIZE, AF_GENERATION, AF_SOCKET, AF_BACKEND. Under torchrun: RANK,
  // WORLD_SIZE, MASTER_ADDR, MASTER_PORT (af serves at port + 1). Under mpirun (OMPI_COMM_WORLD_*):
  // the mpi backend, which needs no store. Alone: a world of one.
  // AF_BACKEND names the backend; under af-launch "nccl" is meant for device memory, and host
  // memory goes over local. AF_COLLECTIVE_TIMEOUT (seconds) sets the timeout.
  static Communicator from_environment();
  // What from_environment() would use, to be changed before construction.
  static Options options_from_environment();

  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  // Not collective. Operations in flight are aborted: synchronize first.
  ~Communicator();

  int rank() const;
  int world_size() const;
  std::uint64_t generation() const;
  BackendKind backend() const;
  // One line for a person: "local, 4 ranks on 2 nodes: 2+2; shared memory, TCP".
  std::string description() const;

  // in and out: `count` elements each; in == out allowed, no other overlap. (In every operation.)
  // The result is bitwise the same on all ranks.
  Work all_reduce(const void* in, void* out, std::size_t count, DataType type,
                  ReduceOp op = ReduceOp::sum, const CallOptions& call = {});
  // `in` is read on the root alone (elsewhere it may be null), `out` is written on all.
  Work broadcast(const void* in, void* out, std::size_t count, DataType type, int root,
                 const CallOptions& call = {});
  // out has count * world_size elements, rank r's at r * count. In place: in == out + rank * count.
  Work all_gather(const void* in, void* out, std::size_t count, DataType type,
                  const CallOptions& call = {});
  // in has count * world_size elements; rank r gets the reduced ones from r * count.
  // In place: out == in + rank * count; the rest of `in` is then left as it was.
  Work reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                      ReduceOp op = ReduceOp::sum, const CallOptions& call = {});
  // Done when all ranks have come to it.
  Work barrier(const CallOptions& call = {});

  // Memory in which the backend works without copying. Collective: all ranks call it in the same
  // order and with the same size, and no operation is in flight (it waits for them).
  Buffer allocate(std::size_t bytes);

  // Frees every thread blocked in an operation here, within milliseconds, and tells the other ranks
  // where the backend can. The communicator is broken from then on. From any thread; not from a
  // signal handler.
  void abort(const std::string& reason = "aborted by the program");

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// Operations that this thread issues on any communicators between begin and end start together at
// the end, none of them on the calling thread: so one thread can drive several ranks. Groups nest;
// the outermost counts. Their Works may be waited on after the end only.
AF_PUBLIC void group_begin();
AF_PUBLIC void group_end();

}  // namespace af
