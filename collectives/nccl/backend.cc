// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/backend.h"

#include <algorithm>
#include <cstring>

#include "collectives/cancel.h"
#include "collectives/nccl/memory.h"
#include "collectives/nccl/reduction.h"

namespace af::nccl {
namespace {

using Kind = CommunicatorError::Kind;
using std::chrono::milliseconds;

// Leaving in good order needs the other ranks of the node; so long do we wait for them.
constexpr milliseconds kFinalize{5000};

}  // namespace

NcclBackend::NcclBackend(const Options& options) : options_(options), rendezvous_(options_) {
  cuda::require_device(options_.device, "nccl");
  (void)library();
  cuda::DeviceGuard guard(options_.device);
  try {
    AF_CUDA(stream_create_with_flags(&stream_, cudaStreamNonBlocking));
    AF_CUDA(malloc(&barrier_word_, sizeof(float)));
    AF_CUDA(memset(barrier_word_, 0, sizeof(float)));
    AF_CUDA(stream_synchronize(nullptr));
    form();
  } catch (...) {
    drop_communicator(true);
    if (barrier_word_) (void)cuda::runtime().free(barrier_word_);
    if (stream_) (void)cuda::runtime().stream_destroy(stream_);
    throw;
  }
  thread_ = std::thread([this] { watch(); });
}

NcclBackend::~NcclBackend() {
  bool good = false;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    good = !broken_ && queue_.empty() && !launching_queue_ &&
           std::all_of(in_flight_.begin(), in_flight_.end(),
                       [](const auto& task) { return task->finished(); });
    changed_.notify_all();
  }
  if (!good) break_with(CommunicatorError(Kind::aborted, "the communicator was destroyed"));
  thread_.join();
  drop_communicator(!good);
  try {
    cuda::DeviceGuard guard(options_.device);
    (void)cuda::runtime().free(barrier_word_);
    (void)cuda::runtime().stream_destroy(stream_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): at exit the driver may be gone
  }
}

std::string NcclBackend::description() const {
  return "nccl " + version_text() + ", " + std::to_string(options_.world_size) + " ranks, device " +
         std::to_string(options_.device) + " here";
}

void NcclBackend::form() {
  ncclUniqueId id{};
  if (options_.rank == 0) AF_NCCL(nullptr, get_unique_id(&id));
  const std::string bytes = rendezvous_.share_id(std::string(id.internal, sizeof id.internal));
  if (bytes.size() != sizeof id.internal) {
    throw CommunicatorError(Kind::store, "nccl backend: rank 0's NCCL id has the wrong length");
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  rendezvous_.came();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto deadline = Clock::now() + options_.timeout;
  {
    std::lock_guard lock(nccl_);
    AF_NCCL(comm_, comm_init_rank_config(&comm_, options_.world_size, id, options_.rank, &config));
  }
  complete(deadline, "forming the NCCL communicator", -1);
}

void NcclBackend::complete(Clock::time_point deadline, const std::string& what,
                           std::int64_t sequence) {
  while (true) {
    check_cancel(options_.cancel.get());
    {
      std::lock_guard lock(nccl_);
      throw_if_broken();  // whoever aborted has taken comm_ away
      ncclResult_t state = ncclInProgress;
      AF_NCCL(comm_, comm_get_async_error(comm_, &state));
      if (check(state, comm_, what.c_str(), __FILE__, __LINE__) == ncclSuccess) return;
    }
    if (Clock::now() > deadline) time_out(what, sequence);
    std::this_thread::yield();
  }
}

std::vector<std::shared_ptr<WorkState>> NcclBackend::submit(std::span<const Operation> operations,
                                                            bool grouped) {
  throw_if_broken();
  if (operations.empty()) return {};
  for (const Operation& o : operations) {  // refuse before anything is on a stream
    if (o.kind == OperationKind::all_reduce || o.kind == OperationKind::reduce_scatter) {
      (void)reduction_for(o.type, o.op, o.pre_scale, options_.world_size);
    }
  }
  cuda::DeviceGuard guard(options_.device);
  Tasks tasks;
  bool hand_over = grouped;
  {
    std::lock_guard lock(mutex_);
    for (const Operation& o : operations) {
      tasks.push_back(std::make_shared<Task>(o, sequence_++, options_.device));
    }
    hand_over = hand_over || !queue_.empty() || launching_queue_;  // never overtake
    if (hand_over) queue_.push_back(tasks);
    in_flight_.insert(in_flight_.end(), tasks.begin(), tasks.end());
    changed_.notify_all();
  }
  if (!hand_over) {
    try {
      launch(tasks);
    } catch (const CommunicatorError& error) {
      break_with(error);
      throw;
    }
  }
  return {tasks.begin(), tasks.end()};
}

void NcclBackend::launch(const Tasks& tasks) {
  std::lock_guard order(launching_);
  throw_if_broken();
  const auto deadline = Clock::now() + options_.timeout;
  for (const auto& task : tasks) {
    AF_CUDA(stream_wait_event(stream_, task->ready.get(), 0));
    task->begin.record(stream_);
  }
  const std::string what = to_string(tasks.front()->operation);
  {
    std::lock_guard lock(nccl_);
    throw_if_broken();
    const bool several = tasks.size() > 1;
    if (several) AF_NCCL(comm_, group_start());
    try {
      for (const auto& task : tasks) enqueue(*task);
    } catch (...) {
      if (several) (void)library().group_end();  // the nesting is counted per thread
      throw;
    }
    if (several) AF_NCCL(comm_, group_end());
  }
  complete(deadline, what, tasks.front()->sequence);
  for (const auto& task : tasks) {
    task->end.record(stream_);
    task->launched();
  }
  std::lock_guard lock(nccl_);
  for (const ncclRedOp_t op : operators_) {
    if (comm_) (void)library().red_op_destroy(op, comm_);
  }
  operators_.clear();
}

void NcclBackend::enqueue(const Task& task) {
  const Operation& o = task.operation;
  const ncclDataType_t type = nccl_type(o.type);
  ncclRedOp_t op = ncclSum;
  if (o.kind == OperationKind::all_reduce || o.kind == OperationKind::reduce_scatter) {
    Reduction reduction = reduction_for(o.type, o.op, o.pre_scale, options_.world_size);
    op = reduction.op;
    if (reduction.scaled) {
      AF_NCCL(comm_, red_op_create_pre_mul_sum(&op, reduction.scalar, type, ncclScalarHostImmediate,
                                               comm_));
      operators_.push_back(op);
    }
  }
  switch (o.kind) {
    case OperationKind::all_reduce:
      AF_NCCL(comm_, all_reduce(o.in, o.out, o.count, type, op, comm_, stream_));
      break;
    case OperationKind::broadcast: {
      const void* in = options_.rank == o.root ? o.in : o.out;  // read on the root only
      AF_NCCL(comm_, broadcast(in, o.out, o.count, type, o.root, comm_, stream_));
      break;
    }
    case OperationKind::all_gather:
      AF_NCCL(comm_, all_gather(o.in, o.out, o.count, type, comm_, stream_));
      break;
    case OperationKind::reduce_scatter:
      AF_NCCL(comm_, reduce_scatter(o.in, o.out, o.count, type, op, comm_, stream_));
      break;
    case OperationKind::barrier:
      AF_NCCL(comm_,
              all_reduce(barrier_word_, barrier_word_, 1, ncclFloat32, ncclSum, comm_, stream_));
      break;
  }
}

std::shared_ptr<Memory> NcclBackend::allocate(std::size_t bytes) {
  throw_if_broken();
  return make_device_memory(options_.device, bytes);
}

void NcclBackend::abort(const std::string& reason) noexcept {
  try {
    break_with(CommunicatorError(Kind::aborted,
                                 "rank " + std::to_string(options_.rank) + " aborted: " + reason,
                                 {options_.rank}));
    rendezvous_.publish_abort(reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): out of memory; the others time out
  }
}

// Order matters: the tasks are failed before NCCL's kernels are told to end, or their events would
// pass for success.
void NcclBackend::break_with(const CommunicatorError& error) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (!broken_) broken_ = std::make_unique<CommunicatorError>(error);
    for (const auto& task : in_flight_) task->fail(*broken_);
    in_flight_.clear();
    queue_.clear();
    changed_.notify_all();
  }
  drop_communicator(true);
}

void NcclBackend::throw_if_broken() {
  std::lock_guard lock(mutex_);
  if (broken_) throw CommunicatorError(*broken_);
}

void NcclBackend::drop_communicator(bool abort) noexcept {
  std::unique_lock lock(nccl_);
  if (!comm_) return;
  try {
    cuda::DeviceGuard guard(options_.device);
    if (!abort) {
      ncclResult_t state = library().comm_finalize(comm_);
      const auto deadline = Clock::now() + kFinalize;
      while (state == ncclInProgress && Clock::now() < deadline) {
        if (library().comm_get_async_error(comm_, &state) != ncclSuccess) break;
        std::this_thread::yield();
      }
      abort = state != ncclSuccess;
    }
    (void)(abort ? library().comm_abort(comm_) : library().comm_destroy(comm_));
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is gone, and the communicator with it
  }
  comm_ = nullptr;
}

}  // namespace af::nccl

namespace af {
std::unique_ptr<Backend> make_nccl_backend(const Options& options) {
  return std::make_unique<nccl::NcclBackend>(options);
}
}  // namespace af
