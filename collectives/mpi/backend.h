// SPDX-License-Identifier: Apache-2.0
// The mpi backend: operations of a program that mpirun or srun --mpi=pmix started.
//
// Every operation is a nonblocking MPI call and a loop of MPI_Test, because a blocking one could
// neither time out nor be aborted. After a failure MPI still holds the buffers of the operation in
// flight (a collective of MPI cannot be cancelled): keep them until the process ends.
//
// At a timeout the rank asks the others, in messages beside the data, how far they are; those that
// do not answer or are behind are named. Ranks answer while they are inside an operation only.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/host_backend.h"
#include "collectives/mpi/transport.h"
#include "collectives/roll_call.h"

namespace af {

class MpiBackend final : public HostBackend {
 public:
  // MPI counts in int, and implementations multiply counts by ranks in int as well: what one call
  // of MPI moves is at most so many bytes.
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 28;

  // `options` with rank and world size as MPI says.
  MpiBackend(const Options& options, std::unique_ptr<MpiTransport> transport,
             std::size_t piece_bytes = kPieceBytes);
  ~MpiBackend() override;

  BackendKind kind() const override { return BackendKind::mpi; }
  std::string description() const override;

 protected:
  void run(const Operation& operation) override;
  void interrupt(const std::string& reason) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  void all_reduce(const Operation& operation);
  void broadcast(const Operation& operation);
  void all_gather(const Operation& operation);
  void reduce_scatter(const Operation& operation);

  // Starts what `step` says and waits for its end; `sequence_` has been counted up for it.
  void execute(const Operation& step);
  void wait(const std::string& what);
  void answer_notices(RollCall* roll);
  [[noreturn]] void give_up(const std::string& what);
  [[noreturn]] void fail_like(const MpiNotice& notice) const;
  void throw_if_interrupted();
  bool tell_once();  // true for the first who asks: that one tells the others
  void require_thread() const;
  void send_to_all(MpiNotice::Kind kind, const std::string& text);
  char* scratch(std::size_t bytes);

  const std::size_t piece_bytes_;
  std::mutex mpi_;  // around every call of transport_, all of them short
  std::unique_ptr<MpiTransport> transport_;
  std::int64_t sequence_ = 0;  // under mpi_
  bool told_ = false;          // under mpi_: the others know that we gave up or aborted
  const std::thread::id maker_ = std::this_thread::get_id();
  std::string what_ = "forming the communicator";  // the public operation in progress, for messages
  std::atomic<bool> interrupted_{false};
  std::mutex reason_mutex_;
  std::string reason_;
  std::atomic<bool> closing_{false};
  std::vector<char> scratch_;
};

}  // namespace af
