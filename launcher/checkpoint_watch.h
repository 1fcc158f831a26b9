// SPDX-License-Identifier: Apache-2.0
// Notices checkpoints of programs that do not tell of them: a change in AF_CHECKPOINT_DIR that has
// come to rest. Only plain programs need it; clients say "checkpoint" in the session.
#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "launcher/environment.h"
#include "launcher/output_writer.h"
#include "launcher/run_directory.h"

namespace af {

// Where the programs of a run write their checkpoints: AF_CHECKPOINT_DIR where the person has set
// it, else the run's own.
std::filesystem::path checkpoint_directory(const Environment& environment, const RunDirectory& run);

// The file in `directory` (`depth` levels deep) that was changed last, of the first 100,000. Hidden
// ones and those with a name of something unfinished (".tmp", "-tmp", ".part", ".writing") do not
// count.
struct NewestFile {
  std::string path;  // empty: there is none
  int64_t changed_ns = 0;
  uintmax_t size = 0;
  bool operator==(const NewestFile&) const = default;
};
NewestFile newest_file(const std::filesystem::path& directory, int depth = 2);

// Pure. Tells a new checkpoint from the files seen every second: it has to be another one than
// before, and the same twice; or another one at each of several looks, since a program that writes
// all the time is never found at rest, and has finished all but the last.
class CheckpointSeen {
 public:
  // What was there at the start is no news.
  explicit CheckpointSeen(NewestFile at_start) : known_(std::move(at_start)), last_(known_) {}
  bool look(const NewestFile& now);

 private:
  static constexpr int kRestless = 3;
  NewestFile known_, last_;
  int restless_ = 0;
};

// Looks every second, in the writer's thread: the file system may be slow. `on_checkpoint` is
// called in the loop.
class CheckpointWatch {
 public:
  CheckpointWatch(asio::io_context& io, OutputWriter& writer, std::filesystem::path directory,
                  std::function<void(const std::string& path)> on_checkpoint);
  ~CheckpointWatch();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace af
