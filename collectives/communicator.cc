// SPDX-License-Identifier: Apache-2.0
// The public face: checks arguments, handles groups, and hands operations to the backend.
#include "af/communicator.h"

#include <unistd.h>

#include <cstdlib>

#include "collectives/arguments.h"
#include "collectives/backend.h"
#include "collectives/environment.h"
#include "collectives/group.h"

namespace af {
namespace {

std::unique_ptr<Backend> make_backend(const Options& options) {
  BackendKind kind = options.backend;
  if (kind == BackendKind::automatic) {
    kind = options.device >= 0 && options.world_size > 1 ? BackendKind::nccl : BackendKind::local;
  }
  if (kind != BackendKind::nccl && options.world_size == 1) kind = BackendKind::local;
  std::unique_ptr<Backend> backend;
  if (kind == BackendKind::local) backend = make_local_backend(options);
  if (kind == BackendKind::mpi) backend = make_mpi_backend(options);
  if (kind == BackendKind::nccl) backend = make_nccl_backend(options);
  if (backend == nullptr && options.backend == BackendKind::automatic) {
    backend = make_local_backend(options);
  }
  if (backend == nullptr) {
    throw CommunicatorError(
        CommunicatorError::Kind::system,
        std::string("this libaf_collectives was built without the backend ") + name_of(kind));
  }
  return backend;
}

}  // namespace

struct Communicator::Impl {
  Options options;
  std::unique_ptr<Backend> backend;
  std::mutex submit_mutex;
  const pid_t owner = getpid();

  ~Impl() {
    // A forked child (a DataLoader worker) holds a copy whose threads do not exist there, and whose
    // descriptors may be the parent's lifeline: it must not touch them.
    if (in_child()) (void)backend.release();
  }

  Work start(const std::shared_ptr<Impl>& self, const Operation& operation) {
    check_operation(operation, options.rank, options.world_size);
    if (in_group()) {
      if (operation.blocking) {
        throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                                to_string(operation) +
                                    ": within a group an operation cannot block; take its Work "
                                    "and wait after group_end()");
      }
      const SubmitGroup launch = [](void* impl, std::span<const Operation> operations) {
        return static_cast<Impl*>(impl)->submit(operations, true);
      };
      if (operation.count == 0 && operation.kind != OperationKind::barrier) return Work();
      return Work(add_to_group(self, launch, operation), options.generation);
    }
    const bool nothing = operation.count == 0 && operation.kind != OperationKind::barrier;
    auto states = submit({&operation, std::size_t(nothing ? 0 : 1)}, false);
    Work work(nothing ? nullptr : std::move(states.front()), options.generation);
    if (operation.blocking) work.synchronize();
    return work;
  }

  std::vector<std::shared_ptr<WorkState>> submit(std::span<const Operation> operations,
                                                 bool grouped) {
    refuse_in_child();
    std::lock_guard lock(submit_mutex);
    return backend->submit(operations, grouped);
  }

  bool in_child() const { return getpid() != owner; }
  void refuse_in_child() const {
    if (!in_child()) return;
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            "a communicator cannot be used in a forked child");
  }
};

Communicator::Communicator(const Options& options) : impl_(std::make_shared<Impl>()) {
  check_options(options);
  impl_->options = options;
  impl_->backend = make_backend(options);
  // A store that is served by rank 0 ends when all ranks have let go of it.
  impl_->options.store.reset();
}

Communicator Communicator::from_environment() {
  return Communicator(options_from_environment());
}

Options Communicator::options_from_environment() {
  return options_from([](const char* name) { return std::getenv(name); });
}

Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::rank() const {
  return impl_->options.rank;
}
int Communicator::world_size() const {
  return impl_->options.world_size;
}
std::uint64_t Communicator::generation() const {
  return impl_->options.generation;
}
BackendKind Communicator::backend() const {
  return impl_->backend->kind();
}
std::string Communicator::description() const {
  return impl_->backend->description();
}

Work Communicator::all_reduce(const void* in, void* out, std::size_t count, DataType type,
                              ReduceOp op, const CallOptions& call) {
  return impl_->start(impl_, {OperationKind::all_reduce, in, out, count, type, op, 0,
                              call.pre_scale, call.stream, call.blocking});
}

Work Communicator::broadcast(const void* in, void* out, std::size_t count, DataType type, int root,
                             const CallOptions& call) {
  return impl_->start(impl_, {OperationKind::broadcast, in, out, count, type, ReduceOp::sum, root,
                              call.pre_scale, call.stream, call.blocking});
}

Work Communicator::all_gather(const void* in, void* out, std::size_t count, DataType type,
                              const CallOptions& call) {
  return impl_->start(impl_, {OperationKind::all_gather, in, out, count, type, ReduceOp::sum, 0,
                              call.pre_scale, call.stream, call.blocking});
}

Work Communicator::reduce_scatter(const void* in, void* out, std::size_t count, DataType type,
                                  ReduceOp op, const CallOptions& call) {
  return impl_->start(impl_, {OperationKind::reduce_scatter, in, out, count, type, op, 0,
                              call.pre_scale, call.stream, call.blocking});
}

Work Communicator::barrier(const CallOptions& call) {
  return impl_->start(impl_, {OperationKind::barrier, nullptr, nullptr, 0, DataType::u8,
                              ReduceOp::sum, 0, 1.0, call.stream, call.blocking});
}

Buffer Communicator::allocate(std::size_t bytes) {
  impl_->refuse_in_child();
  std::lock_guard lock(impl_->submit_mutex);
  return Buffer(impl_->backend->allocate(bytes));
}

void Communicator::abort(const std::string& reason) {
  // What a child shares with its parent is the parent's.
  if (!impl_->in_child()) impl_->backend->abort(reason);
}

}  // namespace af
