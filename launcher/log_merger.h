// SPDX-License-Identifier: Apache-2.0
// One rank's output: whole lines into its own log file, and with a prefix "[rank] " on the agent's
// stdout and stderr. The log file is opened for appending and never truncated.
#pragma once

#include <filesystem>
#include <string_view>

#include "common/unique_fd.h"
#include "launcher/line_splitter.h"
#include "launcher/output_writer.h"

namespace af {

class LogMerger {
 public:
  enum Stream { kStdout = 0, kStderr = 1 };

  // Throws Error if the log file cannot be opened.
  LogMerger(OutputWriter& writer, int rank, const std::filesystem::path& log);

  // From now on another file and another prefix: the rank lives on in another world. Throws Error
  // if the file cannot be opened; then all stays as it was.
  void move_to(int rank, const std::filesystem::path& log);

  void feed(Stream stream, std::string_view bytes);
  void end(Stream stream);  // flushes a last line without an end, and ends it
  const std::deque<std::string>& last_lines() const { return tail_.lines(); }
  const std::filesystem::path& log() const { return path_; }

 private:
  void emit(Stream stream, const std::vector<std::string>& lines);

  OutputWriter& writer_;
  std::string prefix_;
  std::filesystem::path path_;
  OutputWriter::File log_;
  LineSplitter splitters_[2];
  Tail tail_{10};
};

}  // namespace af
