// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi/backend.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "collectives/mpi/elements.h"
#include "collectives/mpi/load.h"

namespace af {
namespace {

using Kind = CommunicatorError::Kind;

Options for_threads(Options options, MpiTransport::Threads threads) {
  if (threads != MpiTransport::Threads::any) options.progress_thread = false;
  return options;
}

}  // namespace

MpiBackend::MpiBackend(const Options& options, std::unique_ptr<MpiTransport> transport,
                       std::size_t piece_bytes)
    : HostBackend(for_threads(options, transport->threads())),
      piece_bytes_(piece_bytes),
      transport_(std::move(transport)) {
  const auto deadline = Clock::now() + options_.timeout;
  transport_->start_setup();
  while (!transport_->test()) {
    if (Clock::now() > deadline) {
      transport_->mark_broken();
      throw CommunicatorError(Kind::timeout,
                              "mpi backend: rank " + std::to_string(options_.rank) +
                                  ": not all ranks came to form the communicator within " +
                                  seconds_text(options_.timeout) + " (MPI does not say which)");
    }
    sched_yield();
  }
}

MpiBackend::~MpiBackend() {
  closing_ = true;  // leaving is no reason for the others to fail
  stop();
}

std::string MpiBackend::description() const {
  return "mpi, " + std::to_string(options_.world_size) + " ranks, " + transport_->version();
}

void MpiBackend::run(const Operation& operation) {
  what_ = to_string(operation);
  switch (operation.kind) {
    case OperationKind::all_reduce:
      return all_reduce(operation);
    case OperationKind::broadcast:
      return broadcast(operation);
    case OperationKind::all_gather:
      return all_gather(operation);
    case OperationKind::reduce_scatter:
      return reduce_scatter(operation);
    case OperationKind::barrier:
      return execute(operation);
  }
}

char* MpiBackend::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

void MpiBackend::all_reduce(const Operation& o) {
  const DataType carrier = carrier_of(o.type);
  const std::size_t size = size_of(o.type), piece = piece_bytes_ / size_of(carrier);
  const int divisor = o.op == ReduceOp::avg ? options_.world_size : 1;
  for (std::size_t at = 0; at < o.count; at += piece) {
    const std::size_t count = std::min(piece, o.count - at);
    const char* in = static_cast<const char*>(o.in) + at * size;
    char* out = static_cast<char*>(o.out) + at * size;
    Operation step = o;
    step.op = o.op == ReduceOp::avg ? ReduceOp::sum : o.op;
    step.type = carrier;
    step.count = count;
    step.in = in;
    step.out = out;
    if (carrier != o.type) step.out = scratch(count * size_of(carrier));
    if (carrier != o.type || o.pre_scale != 1.0) {
      to_carrier(in, step.out, count, o.type, o.pre_scale);
      step.in = step.out;
    }
    execute(step);
    from_carrier(step.out, out, count, o.type, divisor);
  }
}

void MpiBackend::broadcast(const Operation& o) {
  const std::size_t bytes = o.count * size_of(o.type);
  if (options_.rank == o.root && o.in != o.out) std::memcpy(o.out, o.in, bytes);
  for (std::size_t at = 0; at < bytes; at += piece_bytes_) {
    Operation step = o;
    step.type = DataType::u8;
    step.count = std::min(piece_bytes_, bytes - at);
    step.in = step.out = static_cast<char*>(o.out) + at;
    execute(step);
  }
}

void MpiBackend::all_gather(const Operation& o) {
  const auto world = static_cast<std::size_t>(options_.world_size);
  const std::size_t bytes = o.count * size_of(o.type);
  const std::size_t piece = std::max<std::size_t>(piece_bytes_ / world, 1);
  Operation step = o;
  step.type = DataType::u8;
  if (bytes <= piece) {
    step.count = bytes;
    return execute(step);
  }
  for (std::size_t at = 0; at < bytes; at += piece) {
    step.count = std::min(piece, bytes - at);
    step.in = static_cast<const char*>(o.in) + at;
    step.out = scratch(step.count * world);
    execute(step);
    for (std::size_t r = 0; r < world; ++r) {
      std::memcpy(static_cast<char*>(o.out) + r * bytes + at, scratch_.data() + r * step.count,
                  step.count);
    }
  }
}

// Always through scratch memory: MPI's "in place" puts the result elsewhere than ours, and must not
// change the rest of `in`.
void MpiBackend::reduce_scatter(const Operation& o) {
  const auto world = static_cast<std::size_t>(options_.world_size);
  const DataType carrier = carrier_of(o.type);
  const std::size_t size = size_of(o.type), wide = size_of(carrier);
  const std::size_t piece = std::max<std::size_t>(piece_bytes_ / wide / world, 1);
  const int divisor = o.op == ReduceOp::avg ? options_.world_size : 1;
  const bool as_it_is = carrier == o.type && o.pre_scale == 1.0 && o.count <= piece;
  for (std::size_t at = 0; at < o.count; at += piece) {
    const std::size_t count = std::min(piece, o.count - at);
    char* result = scratch((as_it_is ? 1 : world + 1) * count * wide);
    Operation step = o;
    step.op = o.op == ReduceOp::avg ? ReduceOp::sum : o.op;
    step.type = carrier;
    step.count = count;
    step.out = result;
    if (!as_it_is) {
      char* inputs = result + count * wide;
      for (std::size_t r = 0; r < world; ++r) {
        const char* in = static_cast<const char*>(o.in) + (r * o.count + at) * size;
        to_carrier(in, inputs + r * count * wide, count, o.type, o.pre_scale);
      }
      step.in = inputs;
    }
    execute(step);
    from_carrier(result, static_cast<char*>(o.out) + at * size, count, o.type, divisor);
  }
}

void MpiBackend::execute(const Operation& step) {
  throw_if_interrupted();
  try {
    {
      std::lock_guard lock(mpi_);
      require_thread();
      ++sequence_;
      transport_->start(step);
    }
    wait(what_);
  } catch (const CommunicatorError&) {
    std::lock_guard lock(mpi_);
    transport_->mark_broken();
    throw;
  } catch (const std::exception& error) {
    std::lock_guard lock(mpi_);
    transport_->mark_broken();
    throw CommunicatorError(Kind::system, "mpi backend: rank " + std::to_string(options_.rank) +
                                              ": " + what_ + ": " + error.what());
  }
}

// Grouped operations run on a thread of ours whatever Options::progress_thread says.
void MpiBackend::require_thread() const {
  if (transport_->threads() != MpiTransport::Threads::one) return;
  if (std::this_thread::get_id() == maker_) return;
  throw std::runtime_error(
      "the program has initialised MPI for one thread, and this is another; use MPI_Init_thread "
      "with MPI_THREAD_MULTIPLE");
}

void MpiBackend::wait(const std::string& what) {
  const auto start = Clock::now();
  for (unsigned turn = 0;; ++turn) {
    {
      std::lock_guard lock(mpi_);
      if (transport_->test()) return;
    }
    const auto waited = Clock::now() - start;
    if (waited > options_.timeout) give_up(what);
    if (turn % 64 == 0) answer_notices(nullptr);
    throw_if_interrupted();
    // MPI moves data only when it is called, so this loop cannot sleep; but it lets others run.
    if (waited > std::chrono::microseconds(2)) sched_yield();
  }
}

std::unique_ptr<Backend> make_mpi_backend(const Options& options) {
  // The agent of a rank under af-launch has called MPI_Init and MPI_Finalize: MPI would start again
  // here as "rank 0 of 1", in every rank.
  if (std::getenv("AF_SOCKET") || std::getenv("AF_GENERATION")) {
    throw CommunicatorError(
        Kind::invalid_argument,
        "the mpi backend cannot run under af-launch (a rank there would be \"rank 0 of 1\"): use "
        "backend local or nccl, or start the program with mpirun or srun --mpi=pmix");
  }
  std::unique_ptr<MpiTransport> transport = open_mpi_transport();
  if (transport->size() != options.world_size || transport->rank() != options.rank) {
    throw CommunicatorError(
        Kind::invalid_argument,
        "mpi backend: MPI says rank " + std::to_string(transport->rank()) + " of " +
            std::to_string(transport->size()) + ", but rank " + std::to_string(options.rank) +
            " of " + std::to_string(options.world_size) +
            " was asked for; under Slurm start with srun --mpi=pmix (srun --mpi=list shows what "
            "there is), else with mpirun");
  }
  return std::make_unique<MpiBackend>(options, std::move(transport));
}

}  // namespace af
