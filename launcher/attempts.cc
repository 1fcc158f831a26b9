// SPDX-License-Identifier: Apache-2.0
#include "launcher/attempts.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/atomic_file.h"
#include "common/error.h"
#include "launcher/checkpoint_watch.h"

namespace af {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int kDepth = 8;  // of a program's own layout of checkpoints

std::string attempts_file(const RunDirectory& directory) {
  return (directory.path / "attempts.json").string();
}

// The file server's clock throughout: times of files are only compared with each other.
int64_t newest_change(const fs::path& checkpoints) {
  return newest_file(checkpoints, kDepth).changed_ns;
}

}  // namespace

int count_fruitless(const std::vector<AttemptRecord>& attempts) {
  int count = 0;
  for (auto record = attempts.rbegin(); record != attempts.rend(); ++record) {
    if (record->progress || record->closed) break;
    ++count;
  }
  return count;
}

void JournalReader::read() {
  std::ifstream file(path_);
  file.seekg(offset_);
  std::string line;
  // A line without its end is still being written, or was cut by a kill: looked at next time.
  while (std::getline(file, line) && !file.eof()) {
    offset_ += static_cast<int64_t>(line.size()) + 1;
    take(line);
  }
}

void JournalReader::take(const std::string& line) {
  // Most lines are of no interest; those that look like it are parsed.
  if (line.find("\"report\"") == line.npos && line.find("\"checkpoint\"") == line.npos) return;
  const json event = json::parse(line, nullptr, false);
  if (!event.is_object() || !event.contains("run") || event["run"] != run_) return;
  const json name = event.value("event", json());
  if (name != "report" && name != "checkpoint") return;
  if (event.contains("attempt") && event["attempt"].is_number_integer()) {
    const int attempt = event["attempt"].get<int>();
    if (!has_progress(attempt)) with_progress_.push_back(attempt);
  }
  if (name == "checkpoint" && event.contains("seconds") && event["seconds"].is_number())
    longest_checkpoint_ = std::max(longest_checkpoint_, event["seconds"].get<double>());
}

bool JournalReader::has_progress(int attempt) const {
  return std::ranges::find(with_progress_, attempt) != with_progress_.end();
}

Attempts::Attempts(const RunDirectory& directory, fs::path checkpoints, std::string run,
                   int attempt)
    : directory_(directory),
      checkpoints_(std::move(checkpoints)),
      run_(std::move(run)),
      journal_(directory.events(), run_) {
  try {
    const json file = json::parse(read_file(attempts_file(directory_)));
    // A run directory that is used again for another run (--run-dir) starts from the beginning.
    if (file.at("run") == run_)
      for (const json& record : file.at("attempts"))
        if (record.at("attempt") < attempt)
          attempts_.push_back({.attempt = record.at("attempt"),
                               .newest_file = record.at("newest_file"),
                               .progress = record.at("progress"),
                               .closed = record.at("closed")});
  } catch (const std::exception&) {
    attempts_.clear();
  }
  journal_.read();
  attempts_.push_back({.attempt = attempt, .newest_file = newest_change(checkpoints_)});
  for (size_t i = 0; i + 1 < attempts_.size(); ++i)
    attempts_[i].progress = attempts_[i].progress || journal_.has_progress(attempts_[i].attempt) ||
                            attempts_[i + 1].newest_file > attempts_[i].newest_file;
}

int Attempts::fruitless_before() const {
  return count_fruitless({attempts_.begin(), attempts_.end() - 1});
}

void Attempts::begin() {
  write();
}

int Attempts::fruitless_now(bool told_progress) {
  journal_.read();
  AttemptRecord& now = attempts_.back();
  now.progress = now.progress || told_progress || journal_.has_progress(now.attempt) ||
                 newest_change(checkpoints_) > now.newest_file;
  return count_fruitless(attempts_);
}

void Attempts::end(bool closed) {
  attempts_.back().closed = closed;
  write();
}

void Attempts::write() const {
  json list = json::array();
  for (const AttemptRecord& record : attempts_)
    list.push_back({{"attempt", record.attempt},
                    {"newest_file", record.newest_file},
                    {"progress", record.progress},
                    {"closed", record.closed}});
  try {
    write_file_atomically(attempts_file(directory_),
                          json{{"run", run_}, {"attempts", list}}.dump(1) + "\n");
  } catch (const Error&) {
    // A full disk is said by whatever else cannot write there; the journal still tells progress.
  }
}

}  // namespace af
