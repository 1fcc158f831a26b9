// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_spool.h"

#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>

#include "common/atomic_file.h"
#include "common/error.h"

namespace af::train {
namespace {

constexpr int64_t kStartAnew = 1 << 20;
constexpr int64_t kReadAhead = 1 << 20;

std::filesystem::path sent_file_of(const std::filesystem::path& path) {
  return path.string() + ".sent";
}

int64_t read_sent(const std::filesystem::path& path, int64_t size) {
  try {
    const std::string text = read_file(sent_file_of(path));
    int64_t sent = 0;
    std::from_chars(text.data(), text.data() + text.size(), sent);
    return std::clamp<int64_t>(sent, 0, size);
  } catch (const Error&) {
    return 0;  // nothing has been sent
  }
}

}  // namespace

SpoolFile SpoolFile::create(const std::filesystem::path& directory) {
  static std::atomic<int> count{0};
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  for (;;) {
    SpoolFile made;
    made.path_ = directory / fmt::format("spool-{}-{}-{}.jsonl", host, ::getpid(), count++);
    // From an earlier process of the same number.
    if (std::filesystem::exists(made.path_)) continue;
    made.file_ = AppendFile(made.path_);
    // Before it was held, another process may have taken it for an abandoned one.
    if (made.file_.lock() && std::filesystem::exists(made.path_)) return made;
  }
}

SpoolFile SpoolFile::in_memory() {
  SpoolFile made;
  made.file_ = AppendFile(UniqueFd(::memfd_create("af-mlflow-spool", MFD_CLOEXEC)), "memory");
  return made;
}

std::vector<SpoolFile> SpoolFile::abandoned(const std::filesystem::path& directory) {
  std::vector<SpoolFile> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("spool-") || !name.ends_with(".jsonl")) continue;
    try {
      SpoolFile one;
      one.path_ = entry.path();
      one.file_ = AppendFile(one.path_);
      if (!one.file_.lock()) continue;
      // Whoever held it may have removed it just now.
      if (!std::filesystem::exists(one.path_)) continue;
      one.sent_ = read_sent(one.path_, one.file_.size());
      found.push_back(std::move(one));
    } catch (const Error&) {  // somebody else's, or gone
    }
  }
  std::sort(found.begin(), found.end(),
            [](const SpoolFile& a, const SpoolFile& b) { return a.path_ < b.path_; });
  return found;
}

void SpoolFile::append(const std::vector<MlflowItem>& items) {
  std::string text;
  for (const MlflowItem& item : items) text += spool_line(item);
  file_.append(text);
}

SpoolFile::Chunk SpoolFile::peek(std::size_t most) {
  Chunk chunk;
  const std::string text = file_.read(sent_, kReadAhead);
  int64_t passed_over = sent_;
  for (std::size_t at = 0; chunk.items.size() < most;) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const auto item = parse_spool_line(text.substr(at, end - at));
    at = end + 1;
    if (item) {
      chunk.items.push_back(*item);
      chunk.ends.push_back(sent_ + static_cast<int64_t>(at));
    } else if (chunk.items.empty()) {
      passed_over = sent_ + static_cast<int64_t>(at);
    }
  }
  if (chunk.items.empty()) sent_ = passed_over;
  return chunk;
}

void SpoolFile::sent(int64_t end) {
  sent_ = end;
  if (sent_ >= kStartAnew && sent_ == file_.size()) {
    // The count first: it may be less than was sent, which is sent again, but not more than it is.
    sent_ = 0;
    if (on_disk()) write_sent();
    file_.truncate(0);
    return;
  }
  if (on_disk()) write_sent();
}

void SpoolFile::write_sent() const {
  // In place and without fsync: an old number costs that a batch is sent twice.
  AppendFile count(sent_file_of(path_));
  count.truncate(0);
  count.append(std::to_string(sent_));
}

bool SpoolFile::empty() {
  return peek(1).items.empty();
}

void SpoolFile::remove() {
  if (!on_disk()) return;
  std::error_code ignored;
  std::filesystem::remove(sent_file_of(path_), ignored);
  std::filesystem::remove(path_, ignored);
}

}  // namespace af::train
