// SPDX-License-Identifier: Apache-2.0
#include "af/train/background_saver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "train/checkpoint/checkpoint_writing.h"
#include "train/checkpoint/share_buffer.h"
#include "train/checkpoint/share_notes.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kStateFile[] = "state.pt";
// How long rank 0 waits for the shares of others behind its own: of ranks that may have gone, and
// of ranks nobody has missed. Those with a slow disk get a multiple of what rank 0 took.
constexpr auto kWaitForTheLost = std::chrono::seconds(10);
constexpr auto kWaitForAll = std::chrono::minutes(10);

// When rank 0 stops waiting for the others' shares.
class WaitForOthers {
 public:
  WaitForOthers(const SaveShare& share, const std::atomic<bool>& superseded, Clock::duration own)
      : share_(share), superseded_(superseded), own_(own) {}

  Patience operator()() {
    const Clock::time_point now = Clock::now();
    if (!lost_since_ && share_.lost && share_.lost()) lost_since_ = now;
    if (lost_since_ && (superseded_ || now - *lost_since_ > kWaitForTheLost + 3 * own_))
      return Patience::give_up;
    return now - begun_ > kWaitForAll + 10 * own_ ? Patience::give_up : Patience::wait;
  }

 private:
  const SaveShare& share_;
  const std::atomic<bool>& superseded_;
  Clock::duration own_;
  Clock::time_point begun_ = Clock::now();
  std::optional<Clock::time_point> lost_since_;
};

}  // namespace

struct BackgroundSaver::Impl {
  CheckpointDirectory directory;
  Saved saved;
  int64_t attempts = 0;

  std::mutex mutex;
  std::condition_variable changed;
  bool busy = false;  // what is in the buffer is being written, or about to be
  bool ending = false;
  std::atomic<bool> superseded = false;  // the next save has come
  std::exception_ptr failed;
  // While busy, of the saver's thread:
  ShareBuffer buffer;
  int64_t step = 0;
  SaveShare share;
  Clock::time_point begun;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return busy || ending; });
      if (!busy) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        write();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error) failed = error;
      busy = false;
      changed.notify_all();
    }
  }

  void write() {
    if (share.rank != 0) return write_share(directory.root() / share.name);
    const auto saved_ = share.world_size > 1 ? complete_shares() : save_alone();
    if (!saved_) return;
    if (saved) saved(*saved_, std::chrono::duration<double>(Clock::now() - begun).count());
  }

  std::optional<Checkpoint> save_alone() {
    if (step < 0) throw Error::format("checkpoint in {}: step {}", directory.root().string(), step);
    const fs::path fresh = directory.root() / writing_name(step);
    remove_left_behind(directory.root(), {});
    make_writing_directory(fresh);
    return complete(fresh, [&](const fs::path& at) {
      ArchiveFile file(at / kStateFile, ArchiveFile::Open::create);
      return file.finish(buffer.layout().zip, buffer.write(file));
    });
  }

  Checkpoint complete(const fs::path& fresh,
                      const std::function<FileSum(const fs::path& at)>& write_state_file) {
    const Checkpoint checkpoint{directory.path_of(step), step};
    complete_checkpoint(fresh, checkpoint.path, step, [&](const fs::path& at) {
      return FileSums{{kStateFile, write_state_file(at)}};
    });
    directory.prune(step);
    return checkpoint;
  }

  // Rank 0.
  std::optional<Checkpoint> complete_shares() {
    const fs::path fresh = directory.root() / share.name;
    remove_left_behind(directory.root(), fresh);
    try {
      return complete(fresh, [&](const fs::path& at) {
        std::vector<WrittenPart> parts = write_durably(at);
        WaitForOthers patience(share, superseded, Clock::now() - begun);
        const auto others = wait_for_shares(at, others_with_shares(), std::ref(patience));
        parts.insert(parts.end(), others.begin(), others.end());
        // Opened behind the others' close(): also on NFS all of theirs is seen, and kept.
        ArchiveFile file(at / kStateFile, ArchiveFile::Open::shared);
        return file.finish(buffer.layout().zip, std::move(parts));
      });
    } catch (const Error& error) {
      if (!share.lost || !share.lost()) throw;
      directory.warn(error.what());  // no fault of the program's: the training goes on
      return std::nullopt;
    }
  }

  std::vector<WrittenPart> write_durably(const fs::path& at) const {
    ArchiveFile file(at / kStateFile, ArchiveFile::Open::shared);
    auto parts = buffer.write(file);
    file.sync_and_close();
    return parts;
  }

  std::vector<int> others_with_shares() const {
    std::vector<int> ranks;
    const uint64_t bytes = buffer.layout().zip.directory_offset();
    for (int rank = 1; rank < share.world_size; ++rank)
      if (share_of(bytes, rank, share.world_size).bytes() > 0) ranks.push_back(rank);
    return ranks;
  }

  // Another rank.
  void write_share(const fs::path& at) const {
    std::error_code ignored;
    if (share_of(buffer.layout().zip.directory_offset(), share.rank, share.world_size).bytes() == 0)
      return;
    try {
      const ShareNote note(at, share.rank);
      try {
        note.durable(write_durably(at));
      } catch (const std::exception& error) {
        note.failed(error.what());
        throw;
      }
    } catch (const Error&) {
      // Rank 0 has given it up, and has said so.
      if (fs::exists(at, ignored)) throw;
    }
  }

  void begin(std::unique_lock<std::mutex>& lock, int64_t of_step, const State& state,
             SaveShare of_share) {
    superseded = true;
    wait_and_report(lock);
    superseded = false;
    begun = Clock::now();
    buffer.plan(state, of_share.rank, of_share.world_size);
    buffer.copy(state);
    step = of_step;
    share = std::move(of_share);
    busy = true;
    changed.notify_all();
  }

  void wait_and_report(std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] { return !busy; });
    report();
  }

  void report() {
    if (failed) std::rethrow_exception(std::exchange(failed, nullptr));
  }
};

BackgroundSaver::BackgroundSaver(CheckpointDirectory directory, Saved saved)
    : impl_(new Impl{std::move(directory), std::move(saved)}) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

BackgroundSaver::~BackgroundSaver() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
    impl_->changed.notify_all();
  }
  impl_->thread.join();
  try {
    impl_->report();
  } catch (const std::exception& error) {
    warn_on_stderr(error.what());
  }
}

const CheckpointDirectory& BackgroundSaver::directory() const {
  return impl_->directory;
}

bool BackgroundSaver::save(int64_t step, const State& state, Busy busy) {
  std::unique_lock lock(impl_->mutex);
  if (impl_->busy && busy == Busy::skip) return false;
  impl_->begin(lock, step, state, {});
  return true;
}

void BackgroundSaver::save_share(int64_t step, const State& state, SaveShare share) {
  std::unique_lock lock(impl_->mutex);
  impl_->begin(lock, step, state, std::move(share));
}

std::string BackgroundSaver::make_directory(int64_t step) {
  // The save before removes at its beginning what it finds left there.
  std::unique_lock lock(impl_->mutex);
  impl_->superseded = true;
  impl_->wait_and_report(lock);
  const std::string name = writing_name(step, ++impl_->attempts);
  try {
    make_writing_directory(impl_->directory.root() / name);
  } catch (const Error&) {
    return {};
  }
  return name;
}

void BackgroundSaver::prepare(const State& state, int rank, int world_size) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->busy) return;
  impl_->buffer.plan(state, rank, world_size);
  impl_->buffer.touch();
}

void BackgroundSaver::flush() {
  std::unique_lock lock(impl_->mutex);
  impl_->wait_and_report(lock);
}

}  // namespace af::train
