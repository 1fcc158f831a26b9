// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_merger.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "common/error.h"

namespace af {

LogMerger::LogMerger(OutputWriter& writer, int rank, const std::filesystem::path& log)
    : writer_(writer) {
  move_to(rank, log);
}

void LogMerger::move_to(int rank, const std::filesystem::path& log) {
  UniqueFd file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) throw errno_error("cannot open the log file " + log.string());
  prefix_ = fmt::format("[{}] ", rank);
  path_ = log;
  log_ = std::make_shared<const UniqueFd>(std::move(file));
}

void LogMerger::feed(Stream stream, std::string_view bytes) {
  emit(stream, splitters_[stream].feed(bytes));
}

void LogMerger::end(Stream stream) {
  std::string rest = splitters_[stream].rest();
  if (rest.empty()) return;
  if (rest.back() != '\r') rest += '\n';
  emit(stream, {std::move(rest)});
}

// All lines of one read together: a write for each would cost more than the program that prints.
void LogMerger::emit(Stream stream, const std::vector<std::string>& lines) {
  std::string merged, logged;
  for (const std::string& line : lines) {
    tail_.add(line);
    merged += prefix_;
    merged += line;
    logged += line;
  }
  writer_.write(stream == kStdout ? STDOUT_FILENO : STDERR_FILENO, std::move(merged));
  writer_.write(log_, std::move(logged));
}

}  // namespace af
