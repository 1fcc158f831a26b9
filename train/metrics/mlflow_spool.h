// SPDX-License-Identifier: Apache-2.0
// The spool of an MLflow run: a directory with
//   spool-HOST-PID-N.jsonl       what one process has to send, a line an item; it holds flock() on
//   it spool-HOST-PID-N.jsonl.sent  how many bytes of it the server has taken run.json the run,
//   once it is known
// A file whose process is gone is sent by the next one that is given the directory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "train/metrics/append_file.h"
#include "train/metrics/mlflow_item.h"

namespace af::train {

// One file. Use from one thread.
class SpoolFile {
 public:
  // A new one. Throws Error.
  static SpoolFile create(const std::filesystem::path& directory);
  // In memory, where no disk can be written: lost with the process.
  static SpoolFile in_memory();
  // Those in the directory that nobody holds.
  static std::vector<SpoolFile> abandoned(const std::filesystem::path& directory);

  // All or nothing, with an Error.
  void append(const std::vector<MlflowItem>& items);
  // The next items to send, up to `most`; a line that is none is passed over, a torn last one not.
  struct Chunk {
    std::vector<MlflowItem> items;
    std::vector<int64_t> ends;  // where the line behind each begins
  };
  Chunk peek(std::size_t most = 2000);
  // Behind the line that ends at `end`. A file with nothing to send starts anew when it is large.
  void sent(int64_t end);
  bool empty();
  void remove();

  bool on_disk() const { return !path_.empty(); }

 private:
  void write_sent() const;

  std::filesystem::path path_;  // "" in memory
  AppendFile file_;
  int64_t sent_ = 0;
};

}  // namespace af::train
