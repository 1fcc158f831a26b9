// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint/share_notes.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "common/atomic_file.h"
#include "common/error.h"
#include "common/unique_fd.h"

namespace af::train {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

fs::path note(const fs::path& directory, int rank, const char* kind) {
  return directory / fmt::format("share-{}.{}", rank, kind);
}

std::string to_text(const std::vector<WrittenPart>& parts) {
  json list = json::array();
  for (const WrittenPart& part : parts)
    list.push_back({part.entry, part.first, part.sum.bytes, fmt::format("{:08x}", part.sum.crc32)});
  return list.dump() + "\n";
}

std::vector<WrittenPart> to_parts(const std::string& text) {
  std::vector<WrittenPart> parts;
  for (const json& one : json::parse(text)) {
    const auto crc = std::strtoul(one.at(3).get<std::string>().c_str(), nullptr, 16);
    parts.push_back({one.at(0).get<std::size_t>(),
                     one.at(1).get<uint64_t>(),
                     {one.at(2).get<uint64_t>(), static_cast<uint32_t>(crc)}});
  }
  return parts;
}

// What a rank has said, if anything. Throws if it has failed.
std::optional<std::vector<WrittenPart>> said_by(const fs::path& directory, int rank) {
  std::error_code ignored;
  const fs::path failed = note(directory, rank, "failed");
  if (fs::exists(failed, ignored)) {
    const std::string why = read_file(failed);
    throw Error::format("rank {} could not write its share: {}", rank,
                        why.empty() ? "its message says why" : why);
  }
  const fs::path done = note(directory, rank, "json");
  if (!fs::exists(done, ignored)) return std::nullopt;
  try {
    return to_parts(read_file(done));
  } catch (const json::exception& error) {
    throw Error::format("{}: {}", done.string(), error.what());
  }
}

// An NFS client believes for a while what it has seen of a directory, also that a file is not
// there, but not when it has changed the directory itself.
void look_afresh(const fs::path& directory) {
  const fs::path nothing = directory / ".look";
  UniqueFd(::open(nothing.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  ::unlink(nothing.c_str());
}

}  // namespace

ShareNote::ShareNote(const fs::path& directory, int rank)
    : writing_(note(directory, rank, "writing")),
      done_(note(directory, rank, "json")),
      failed_(note(directory, rank, "failed")) {
  UniqueFd fd(::open(writing_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) throw errno_error("cannot create " + writing_.string());
}

void ShareNote::durable(const std::vector<WrittenPart>& parts) const {
  write_file_atomically(done_, to_text(parts));
}

void ShareNote::failed(const char* why) const {
  if (FILE* file = ::fopen(writing_.c_str(), "we")) {
    ::fputs(why, file);
    ::fclose(file);
  }
  ::rename(writing_.c_str(), failed_.c_str());
}

std::vector<WrittenPart> wait_for_shares(const fs::path& directory, std::vector<int> ranks,
                                         const std::function<Patience()>& patience) {
  const std::vector<int> all = ranks;
  std::vector<WrittenPart> parts;
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    const auto left = std::remove_if(ranks.begin(), ranks.end(), [&](int rank) {
      const auto said = said_by(directory, rank);
      if (said) parts.insert(parts.end(), said->begin(), said->end());
      return said.has_value();
    });
    ranks.erase(left, ranks.end());
    if (ranks.empty()) break;
    if (patience() == Patience::give_up)
      throw Error::format("rank {} did not write its share", fmt::join(ranks, ", "));
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::milliseconds(100))
      pause *= 2;
    else
      look_afresh(directory);
  }
  std::error_code ignored;
  for (const int rank : all)
    for (const char* kind : {"json", "writing"}) fs::remove(note(directory, rank, kind), ignored);
  return parts;
}

}  // namespace af::train
