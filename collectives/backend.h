// SPDX-License-Identifier: Apache-2.0
// What a backend (local, mpi, nccl) owes to the Communicator.
//
// The Communicator has checked every argument (types, root, null, pre_scale of integers) and
// handled groups before a backend sees an operation; a backend never sees count == 0 except for a
// barrier, and world_size == 1 is the local backend's whatever was asked for (nccl excepted).
// A host backend derives from HostBackend (host_backend.h), which brings order, the progress
// thread, broken-state and staging of device memory; a stream-ordered one from this class.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "af/communicator.h"

namespace af {

enum class OperationKind : int {
  all_reduce = 0,
  broadcast = 1,
  all_gather = 2,
  reduce_scatter = 3,
  barrier = 4,
};
const char* name_of(OperationKind kind);

struct Operation {
  OperationKind kind = OperationKind::barrier;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  // as in the public call: per rank for all_gather and reduce_scatter
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  double pre_scale = 1.0;
  Stream stream = nullptr;
  bool blocking = false;  // the Communicator synchronizes right after submit()
};

// "all_reduce(count 1024, f32, sum)": for messages.
std::string to_string(const Operation& operation);
// Bytes of `in` and `out` of an operation in a world of that size.
std::size_t input_bytes(const Operation& operation, int world_size);
std::size_t output_bytes(const Operation& operation, int world_size);

// An operation in flight. Methods may be called from several threads at once.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual bool done() noexcept = 0;
  virtual void wait(Stream stream) = 0;  // throws CommunicatorError
  virtual void synchronize() = 0;        // throws CommunicatorError
};

class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* data() const = 0;
  virtual std::size_t bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendKind kind() const = 0;
  virtual std::string description() const = 0;

  // Starts the operations in this order; returns one state per operation, null for one that is done
  // already. With `grouped` nothing
  // may run on the calling thread (several ranks may share it). Throws CommunicatorError if broken.
  // Called by one thread at a time.
  virtual std::vector<std::shared_ptr<WorkState>> submit(std::span<const Operation> operations,
                                                         bool grouped) = 0;
  virtual std::shared_ptr<Memory> allocate(std::size_t bytes) = 0;
  // From any thread, repeatedly, while submit() or a WorkState blocks. Never throws, never waits
  // for a peer.
  virtual void abort(const std::string& reason) noexcept = 0;
};

// Each is in a file of its own; mpi and nccl return null when not built in.
std::unique_ptr<Backend> make_local_backend(const Options& options);
std::unique_ptr<Backend> make_mpi_backend(const Options& options);
std::unique_ptr<Backend> make_nccl_backend(const Options& options);

}  // namespace af
