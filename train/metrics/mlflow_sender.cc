// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_sender.h"

#include <fmt/core.h>
#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "common/error.h"

namespace af::train {
namespace {

using Kind = MlflowAnswer::Kind;

constexpr std::size_t kMostQueued = 100'000;   // some 10 MB, while the spool's disk hangs
constexpr std::chrono::minutes kMostWait{10};  // that a server may ask for
constexpr int kMostOutagesSaid = 3;

}  // namespace

MlflowSender::MlflowSender(const MlflowOptions& options)
    : options_(options),
      run_(options, [this](const std::string& text) { say(text); }),
      pause_(options.retry),
      try_at_(Clock::now()),
      thread_([this] { run(); }) {}

MlflowSender::~MlflowSender() {
  finish();
}

void MlflowSender::say(const std::string& text) const {
  std::fprintf(stderr, "af: MLflow at %s %s\n", without_credentials(options_.tracking_uri).c_str(),
               text.c_str());
}

void MlflowSender::push(std::vector<MlflowItem> items) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    for (MlflowItem& item : items)
      if (queue_.size() < kMostQueued)
        queue_.push_back(std::move(item));
      else
        ++lost_;
  }
  wake_.notify_one();
}

void MlflowSender::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (!ending_) {
      ending_ = true;
      deadline_ = Clock::now() + options_.patience;
      run_.end_by(deadline_);
    }
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MlflowSender::run() {
  ::pthread_setname_np(::pthread_self(), "af mlflow");
  std::unique_lock lock(mutex_);
  // The first pass is for what a process before this one has left.
  do {
    std::vector<MlflowItem> items(std::make_move_iterator(queue_.begin()),
                                  std::make_move_iterator(queue_.end()));
    queue_.clear();
    const bool ending = ending_;
    lock.unlock();
    if (!items.empty()) spool(items);
    if (!given_up_ && (ending || Clock::now() >= try_at_)) after(send_all());
    lock.lock();
  } while (next(lock));
  const std::size_t lost = lost_;
  // What came while the last request ran out of time: for the next start.
  const std::vector<MlflowItem> left(queue_.begin(), queue_.end());
  queue_.clear();
  lock.unlock();
  if (!left.empty()) spool(left);
  close(lost > 0 ? fmt::format("lost {} values: the disk of {} was too slow", lost,
                               options_.spool.string())
                 : "");
}

// Waits for something to do; false at the end.
bool MlflowSender::next(std::unique_lock<std::mutex>& lock) {
  for (;;) {
    const auto now = Clock::now();
    if (ending_) {
      const bool over = queue_.empty() && (given_up_ || !away_);
      if (over || now >= deadline_) return false;
      // Somebody waits for the end: more often than otherwise.
      const auto pause = std::min<Clock::duration>(pause_, std::chrono::milliseconds(200));
      if (queue_.empty()) wake_.wait_until(lock, std::min(now + pause, deadline_));
      return true;
    }
    if (away_ && !given_up_) {
      if (!queue_.empty() || now >= try_at_) return true;
      wake_.wait_until(lock, try_at_);
    } else {
      wake_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      // What comes within a moment goes together; a logger of every step would send thousands.
      wake_.wait_for(lock, options_.gather, [&] { return ending_; });
      if (!queue_.empty()) return true;
    }
  }
}

void MlflowSender::spool(const std::vector<MlflowItem>& items) {
  try {
    if (!own_) own_ = SpoolFile::create(options_.spool);
    own_->append(items);
    return;
  } catch (const Error& error) {
    if (own_ && !own_->on_disk()) return;  // no memory for it
    say(fmt::format("has no spool: {}; what it does not take is lost at the end", error.what()));
  }
  std::vector<MlflowItem> unsent;
  if (own_) unsent = own_->peek(kMostQueued).items;
  own_ = SpoolFile::in_memory();
  own_->append(unsent);
  own_->append(items);
}

MlflowAnswer MlflowSender::send_all() {
  MlflowAnswer answer;
  answer.kind = Kind::done;
  try {
    for (SpoolFile& one : SpoolFile::abandoned(options_.spool)) {
      answer = run_.send(one);
      if (!answer.done()) return answer;
      one.remove();
    }
    if (own_) answer = run_.send(*own_);
  } catch (const std::exception& error) {  // the spool's disk
    answer.kind = Kind::later;
    answer.why = error.what();
  }
  return answer;
}

void MlflowSender::after(const MlflowAnswer& answer) {
  if (answer.done()) {
    if (away_ && outages_ <= kMostOutagesSaid) say("is there again, and has everything");
    away_ = false;
    pause_ = options_.retry;
    return;
  }
  why_ = answer.why;
  if (answer.kind != Kind::later) {
    given_up_ = true;
    say(fmt::format("takes nothing: {}; it is not asked again, and the values stay in {}", why_,
                    options_.spool.string()));
    return;
  }
  const bool said_at_the_end = patience_is_over();
  if (!std::exchange(away_, true) && !said_at_the_end && ++outages_ <= kMostOutagesSaid)
    say(fmt::format("does not take values now: {}; they are kept in {} and sent when it does", why_,
                    options_.spool.string()));
  try_at_ = Clock::now() + std::clamp<Clock::duration>(answer.wait, pause_, kMostWait);
  pause_ = std::min(2 * pause_, options_.most_retry);
}

bool MlflowSender::patience_is_over() {
  const std::lock_guard lock(mutex_);
  return Clock::now() >= deadline_;
}

void MlflowSender::close(const std::string& complaint) {
  if (!complaint.empty()) say(complaint);
  if (!own_) return;
  try {
    if (own_->empty())
      own_->remove();
    else if (own_->on_disk())
      say(fmt::format("has not taken all ({}): the rest is in {}, for the next start of this run",
                      why_, options_.spool.string()));
    else
      say("has not taken all, and the rest is lost");
  } catch (const std::exception& error) {
    say(error.what());
  }
}

}  // namespace af::train
