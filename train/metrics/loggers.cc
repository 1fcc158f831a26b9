// SPDX-License-Identifier: Apache-2.0
#include "af/train/loggers.h"

#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "train/metrics/append_file.h"
#include "train/metrics/csv_table.h"
#include "train/metrics/event_record.h"
#include "train/metrics/rank_zero_logger.h"

namespace af::train {
namespace {

using Path = std::filesystem::path;
using Records = std::vector<LogRecord>;

// The time sorts: TensorBoard reads the files of a directory in the order of their names.
std::string event_file_name(double time) {
  static std::atomic<int> count{0};
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("events.out.tfevents.{:010}.{}.{}.{}", static_cast<int64_t>(time), host,
                     ::getpid(), count++);
}

class EventFile {
 public:
  explicit EventFile(Path directory) : directory_(std::move(directory)) {}
  void write(const Records& records) {
    if (!file_) {
      AppendFile fresh(directory_ / event_file_name(records.front().time));
      fresh.append(record_of(file_version_event(records.front().time)));
      file_ = std::move(fresh);
    }
    std::string bytes;
    for (const LogRecord& one : records)
      bytes += record_of(scalars_event(one.time, one.step, one.metrics));
    file_.append(bytes);
  }

 private:
  Path directory_;
  AppendFile file_;
};

class JsonLinesFile {
 public:
  explicit JsonLinesFile(Path path) : path_(std::move(path)) {}
  void write(const Records& records) {
    if (!file_) {
      file_ = AppendFile(path_);
      cut_torn_line(file_);
    }
    std::string text;
    for (const LogRecord& one : records) {
      const nlohmann::json line = {
          {"t", one.time}, {"step", one.step}, {"epoch", one.epoch}, {"metrics", one.metrics}};
      text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
    file_.append(text);
  }

 private:
  Path path_;
  AppendFile file_;
};

// A logger that keeps a File, made from a path.
template <typename File>
std::shared_ptr<Callback> file_logger(const std::string& name, const Path& path) {
  return std::make_shared<RankZeroLogger>(
      fmt::format("{} {}", name, path.string()), [path]() -> RankZeroLogger::Write {
        auto file = std::make_shared<File>(path);
        return [file](const Records& records) { file->write(records); };
      });
}

class JournalLogger : public Callback {
 public:
  explicit JournalLogger(Session& session) : session_(session) {}
  std::string name() const override { return "journal"; }
  void on_start(const StartInfo& info) override { rank_ = info.rank; }
  void on_world_change(const WorldChangeInfo& info) override { rank_ = info.rank; }
  void on_report(const ReportInfo& info) override {
    if (rank_ == 0) session_.report(info.step, info.epoch, info.metrics);
  }
  void on_checkpoint(const CheckpointInfo& info) override {
    session_.checkpoint(info.path, info.step, info.seconds);
  }

 private:
  Session& session_;
  int rank_ = 0;
};

}  // namespace

std::shared_ptr<Callback> tensorboard_logger(const Path& directory) {
  return file_logger<EventFile>("TensorBoard", directory);
}
std::shared_ptr<Callback> csv_logger(const Path& file) {
  return file_logger<CsvTable>("CSV", file);
}
std::shared_ptr<Callback> json_lines_logger(const Path& file) {
  return file_logger<JsonLinesFile>("JSON lines", file);
}
std::shared_ptr<Callback> journal_logger(Session& session) {
  return std::make_shared<JournalLogger>(session);
}

}  // namespace af::train
