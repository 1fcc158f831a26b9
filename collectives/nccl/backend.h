// SPDX-License-Identifier: Apache-2.0
// The nccl backend: operations on device memory, in the order of streams. Not yet run on hardware.
//
// The communicator does not block (config.blocking = 0): a call that NCCL has not finished gives
// ncclInProgress and is polled with a deadline, so init and launch can time out, and abort() can
// come from any thread. NCCL asks for two things: one thread at a time inside a communicator (nccl_
// below, never held while waiting) and ncclCommAbort on every live rank after a failure.
//
// Operations run on a stream of the communicator's own, between two events: it waits for what the
// caller had on its stream before, and Work::wait() makes a stream wait for the end. One thread
// watches what is in flight: NCCL's asynchronous errors, the timeout, other ranks' aborts; it also
// launches grouped operations, because that may wait for ranks that the calling thread drives.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "collectives/backend.h"
#include "collectives/nccl/library.h"
#include "collectives/nccl/rendezvous.h"
#include "collectives/nccl/task.h"

namespace af::nccl {

class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(const Options& options);
  ~NcclBackend() override;

  BackendKind kind() const override { return BackendKind::nccl; }
  std::string description() const override;
  std::vector<std::shared_ptr<WorkState>> submit(std::span<const Operation> operations,
                                                 bool grouped) override;
  std::shared_ptr<Memory> allocate(std::size_t bytes) override;
  void abort(const std::string& reason) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;
  using Tasks = std::vector<std::shared_ptr<Task>>;

  void form();
  void launch(const Tasks& tasks);
  void enqueue(const Task& task);  // one NCCL call; nccl_ is held
  // Polls until NCCL has finished what it was asked; throws at the deadline or for an error.
  void complete(Clock::time_point deadline, const std::string& what, std::int64_t sequence);
  void watch();
  void look_after(Task& oldest);
  void publish_while_slow(const Task& oldest, Clock::duration waited);
  [[noreturn]] void time_out(const std::string& what, std::int64_t sequence);
  void break_with(const CommunicatorError& error) noexcept;
  void throw_if_broken();
  void drop_communicator(bool abort) noexcept;

  const Options options_;
  Rendezvous rendezvous_;
  cudaStream_t stream_ = nullptr;
  void* barrier_word_ = nullptr;  // device memory

  std::mutex nccl_;  // one thread at a time in NCCL
  ncclComm_t comm_ = nullptr;
  std::vector<ncclRedOp_t> operators_;  // made for the launch in progress

  std::mutex launching_;  // launches keep the order of submission
  std::mutex mutex_;      // what follows
  std::condition_variable changed_;
  std::deque<Tasks> queue_;                      // grouped: to be launched by the thread
  bool launching_queue_ = false;                 // the thread is at one of them
  std::deque<std::shared_ptr<Task>> in_flight_;  // in order
  std::int64_t sequence_ = 0;
  bool stopping_ = false;
  std::unique_ptr<CommunicatorError> broken_;
  Clock::time_point published_{};  // the watching thread's: last word to the store
  std::thread thread_;
};

}  // namespace af::nccl
