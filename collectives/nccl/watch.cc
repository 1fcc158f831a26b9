// SPDX-License-Identifier: Apache-2.0
// The nccl backend's thread: launches what was grouped, and watches what is in flight.
#include "collectives/nccl/backend.h"
#include "collectives/roll_call.h"

namespace af::nccl {
namespace {

using Kind = CommunicatorError::Kind;
using std::chrono::milliseconds;

constexpr milliseconds kWatchEvery{10};
// An operation that waits so long makes its rank say where it is, once in such a time.
constexpr milliseconds kSlow{1000};
// How long a rank that gives up asks around for who is missing.
constexpr milliseconds kRollCall{500};

}  // namespace

void NcclBackend::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (!in_flight_.empty() && in_flight_.front()->finished()) in_flight_.pop_front();
    if (stopping_) return;
    if (!queue_.empty()) {
      const Tasks tasks = std::move(queue_.front());
      queue_.pop_front();
      launching_queue_ = true;
      lock.unlock();
      try {
        cuda::DeviceGuard guard(options_.device);
        launch(tasks);
      } catch (const CommunicatorError& error) {
        break_with(error);
      }
      lock.lock();
      launching_queue_ = false;
      continue;
    }
    if (in_flight_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const std::shared_ptr<Task> oldest = in_flight_.front();
    lock.unlock();
    try {
      look_after(*oldest);
    } catch (const CommunicatorError& error) {
      break_with(error);
    }
    lock.lock();
    changed_.wait_for(lock, kWatchEvery);
  }
}

void NcclBackend::look_after(Task& oldest) {
  {
    std::lock_guard lock(nccl_);
    if (!comm_) return;
    ncclResult_t state = ncclSuccess;
    AF_NCCL(comm_, comm_get_async_error(comm_, &state));
    // ncclInProgress: another thread is at a launch, and waits for it there.
    check(state, comm_, to_string(oldest.operation).c_str(), __FILE__, __LINE__);
  }
  // What waits for the caller's own kernels is not stuck; only then does the clock start.
  if (!oldest.began()) return;
  const auto now = Clock::now();
  if (!oldest.began_at) oldest.began_at = now;
  const auto waited = now - *oldest.began_at;
  publish_while_slow(oldest, waited);
  if (waited > options_.timeout) time_out(to_string(oldest.operation), oldest.sequence);
}

// Said before the timeout, because the ranks' clocks start when each of them comes: the first to
// give up must find the word of the one that came just before.
void NcclBackend::publish_while_slow(const Task& oldest, Clock::duration waited) {
  const auto slow = std::min<Clock::duration>(kSlow, options_.timeout / 2);
  const auto now = Clock::now();
  if (waited < slow || now - published_ < slow) return;
  published_ = now;
  rendezvous_.publish_progress(oldest.sequence);
  const std::string who = rendezvous_.aborted();
  if (who.empty()) return;
  throw CommunicatorError(Kind::aborted, who + " (aborted; noticed by rank " +
                                             std::to_string(options_.rank) + " in " +
                                             to_string(oldest.operation) + ")");
}

void NcclBackend::time_out(const std::string& what, std::int64_t sequence) {
  std::vector<int> missing;
  if (sequence < 0) {
    missing = rendezvous_.not_come(kRollCall);
  } else {
    rendezvous_.publish_progress(sequence);
    missing = rendezvous_.behind(sequence, kRollCall);
  }
  const std::string where = what + " on rank " + std::to_string(options_.rank);
  throw_timeout(where, options_.timeout, missing);
}

}  // namespace af::nccl
