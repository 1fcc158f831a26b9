// SPDX-License-Identifier: Apache-2.0
// The mpi backend when an operation does not end: who is missing, who gave up, abort.
#include <sched.h>

#include <utility>

#include "collectives/mpi/backend.h"

namespace af {
namespace {

using Kind = CommunicatorError::Kind;

// How long a rank that gives up asks around for who is missing.
constexpr std::chrono::milliseconds kRollCall{500};

}  // namespace

// Says where this rank is to those who ask; notes answers in `roll`; throws if a rank gave up.
void MpiBackend::answer_notices(RollCall* roll) {
  std::unique_lock lock(mpi_);
  MpiNotice notice;
  while (transport_->receive(&notice)) {
    switch (notice.kind) {
      case MpiNotice::Kind::query: {
        if (roll) roll->heard(notice.sender, notice.sequence);
        MpiNotice answer;
        answer.kind = MpiNotice::Kind::answer;
        answer.sequence = sequence_;
        transport_->send(notice.sender, answer);
        break;
      }
      case MpiNotice::Kind::answer:
        if (roll) roll->heard(notice.sender, notice.sequence);
        break;
      case MpiNotice::Kind::gave_up:
      case MpiNotice::Kind::aborted:
        told_ = true;  // by that rank
        fail_like(notice);
    }
  }
}

void MpiBackend::fail_like(const MpiNotice& notice) const {
  std::string text = "rank " + std::to_string(notice.sender);
  std::vector<int> ranks{notice.sender};
  const bool aborted = notice.kind == MpiNotice::Kind::aborted;
  if (aborted) {
    text.append(" aborted: ").append(notice.text);
  } else {
    ranks = ranks_from_text(notice.text);
    text.append(" gave up waiting for ").append(rank_list(ranks));
  }
  text.append(" (noticed by rank ").append(std::to_string(options_.rank)).append(" in ");
  text.append(what_).append(")");
  throw CommunicatorError(aborted ? Kind::aborted : Kind::timeout, text, ranks);
}

void MpiBackend::give_up(const std::string& what) {
  RollCall roll(options_.world_size, options_.rank, 0);
  {
    std::lock_guard lock(mpi_);
    roll = RollCall(options_.world_size, options_.rank, sequence_);
  }
  send_to_all(MpiNotice::Kind::query, "");
  const auto deadline = Clock::now() + kRollCall;
  while (!roll.complete() && Clock::now() < deadline) {
    answer_notices(&roll);
    throw_if_interrupted();
    sched_yield();
  }
  const std::vector<int> missing = roll.missing();
  {
    std::lock_guard lock(mpi_);
    told_ = true;
  }
  send_to_all(MpiNotice::Kind::gave_up, ranks_to_text(missing));
  const std::string where = what + " on rank " + std::to_string(options_.rank);
  throw_timeout(where, options_.timeout, missing);
}

void MpiBackend::send_to_all(MpiNotice::Kind kind, const std::string& text) {
  std::lock_guard lock(mpi_);
  MpiNotice notice;
  notice.kind = kind;
  notice.sequence = sequence_;
  text.copy(notice.text, MpiNotice::kTextBytes - 1);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank != options_.rank) transport_->send(rank, notice);
  }
}

void MpiBackend::throw_if_interrupted() {
  if (!interrupted_.load(std::memory_order_acquire)) return;
  std::string reason;
  {
    std::lock_guard lock(reason_mutex_);
    reason = reason_;
  }
  if (tell_once()) send_to_all(MpiNotice::Kind::aborted, reason);
  throw CommunicatorError(
      Kind::aborted,
      "rank " + std::to_string(options_.rank) + " aborted in " + what_ + ": " + reason,
      {options_.rank});
}

bool MpiBackend::tell_once() {
  std::lock_guard lock(mpi_);
  transport_->mark_broken();
  return !std::exchange(told_, true);
}

void MpiBackend::interrupt(const std::string& reason) noexcept {
  try {
    {
      std::lock_guard lock(reason_mutex_);
      if (reason_.empty()) reason_ = reason;
    }
    interrupted_.store(true, std::memory_order_release);
    // Two cases in which only an operation in flight tells the others, if there is one: a
    // communicator that just ends, and MPI that must not be entered from another thread.
    if (closing_ || transport_->threads() != MpiTransport::Threads::any) return;
    if (tell_once()) send_to_all(MpiNotice::Kind::aborted, reason);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the others then run into their own timeout
  }
}

}  // namespace af
