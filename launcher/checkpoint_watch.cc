// SPDX-License-Identifier: Apache-2.0
#include "launcher/checkpoint_watch.h"

#include <sys/stat.h>

#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <utility>

namespace af {
namespace fs = std::filesystem;
namespace {

constexpr auto kLookEvery = std::chrono::seconds(1);

bool unfinished(const std::string& name) {
  if (name.starts_with('.')) return true;
  for (const char* mark : {".tmp", "-tmp", "_tmp", ".part", ".writing"})
    if (name.find(mark) != std::string::npos) return true;
  return false;
}

constexpr int kMostFiles = 100000;  // somebody may have put a data set there

void look_into(const fs::path& directory, int depth, int& left, NewestFile& newest) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end && left-- > 0;
       entry.increment(error)) {
    struct stat status {};
    const fs::path& path = entry->path();
    if (unfinished(path.filename().string()) || ::lstat(path.c_str(), &status) != 0) continue;
    const int64_t changed = status.st_mtim.tv_sec * 1'000'000'000LL + status.st_mtim.tv_nsec;
    if (S_ISREG(status.st_mode) && changed > newest.changed_ns)
      newest = {path.string(), changed, static_cast<uintmax_t>(status.st_size)};
    if (S_ISDIR(status.st_mode) && depth > 1) look_into(path, depth - 1, left, newest);
  }
}

}  // namespace

fs::path checkpoint_directory(const Environment& environment, const RunDirectory& run) {
  return value_or(environment, "AF_CHECKPOINT_DIR", run.checkpoints().string());
}

NewestFile newest_file(const fs::path& directory, int depth) {
  NewestFile newest;
  int left = kMostFiles;
  look_into(directory, depth, left, newest);
  return newest;
}

bool CheckpointSeen::look(const NewestFile& now) {
  const bool at_rest = now == last_;
  restless_ = at_rest ? 0 : restless_ + 1;
  last_ = now;
  if ((!at_rest && restless_ < kRestless) || now == known_ || now.path.empty()) return false;
  known_ = now;
  restless_ = 0;
  return true;
}

struct CheckpointWatch::State : std::enable_shared_from_this<State> {
  State(asio::io_context& context, OutputWriter& output, fs::path where,
        std::function<void(const std::string&)> callback)
      : io(context),
        writer(output),
        timer(context),
        directory(std::move(where)),
        seen(newest_file(directory)),
        on_checkpoint(std::move(callback)) {}

  void look_later() {
    timer.expires_after(kLookEvery);
    timer.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (error || !self->on_checkpoint) return;
      // The loop has to live until the answer is there.
      self->writer.run([self, loop = asio::make_work_guard(self->io)] {
        asio::post(self->io, [self, newest = newest_file(self->directory)] {
          if (!self->on_checkpoint) return;
          if (self->seen.look(newest)) self->on_checkpoint(newest.path);
          self->look_later();
        });
      });
    });
  }

  asio::io_context& io;
  OutputWriter& writer;
  asio::steady_timer timer;
  fs::path directory;
  CheckpointSeen seen;
  std::function<void(const std::string&)> on_checkpoint;
};

CheckpointWatch::CheckpointWatch(asio::io_context& io, OutputWriter& writer, fs::path directory,
                                 std::function<void(const std::string&)> on_checkpoint)
    : state_(std::make_shared<State>(io, writer, std::move(directory), std::move(on_checkpoint))) {
  state_->look_later();
}

CheckpointWatch::~CheckpointWatch() {
  state_->on_checkpoint = nullptr;
  state_->timer.cancel();
}

}  // namespace af
