// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_merger.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "common/error.h"

namespace af {

LogMerger::LogMerger(OutputWriter& writer, int rank, const std::filesystem::path& log)
    : writer_(writer), prefix_(fmt::format("[{}] ", rank)), path_(log) {
  UniqueFd file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) throw errno_error("cannot open the log file " + log.string());
  log_ = std::make_shared<const UniqueFd>(std::move(file));
}

void LogMerger::feed(Stream stream, std::string_view bytes) {
  for (std::string& line : splitters_[stream].feed(bytes)) emit(stream, std::move(line));
}

void LogMerger::end(Stream stream) {
  std::string rest = splitters_[stream].rest();
  if (rest.empty()) return;
  if (rest.back() != '\r') rest += '\n';
  emit(stream, std::move(rest));
}

void LogMerger::emit(Stream stream, std::string text) {
  tail_.add(text);
  writer_.write(stream == kStdout ? STDOUT_FILENO : STDERR_FILENO, prefix_ + text);
  writer_.write(log_, std::move(text));
}

}  // namespace af
