// SPDX-License-Identifier: Apache-2.0
#include "af/train/profile.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "common/atomic_file.h"
#include "common/error.h"
#include "train/metrics/trace.h"

namespace af::train {
namespace {

int64_t number(std::string_view text, const std::string& all) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || end != text.end() || value < 1)
    throw Error::format("AF_PROFILE_STEPS={}: steps from 1 on, such as 100-102,5000", all);
  return value;
}

TraceOrigin origin_of(int rank) {
  TraceOrigin origin;
  origin.rank = rank;
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  origin.host = host;
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  origin.clock_offset =
      std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() - trace_now();
  return origin;
}

}  // namespace

std::vector<ProfiledSteps> parse_profiled_steps(const std::string& text) {
  std::vector<ProfiledSteps> ranges;
  std::string_view left = text;
  while (true) {
    const auto comma = left.find(',');
    const auto one = left.substr(0, comma);
    const auto dash = one.find('-');
    const int64_t first = number(one.substr(0, dash), text);
    const int64_t last =
        dash == std::string_view::npos ? first : number(one.substr(dash + 1), text);
    if (last < first || (!ranges.empty() && first <= ranges.back().last))
      throw Error::format("AF_PROFILE_STEPS={}: the steps must rise", text);
    ranges.push_back({first, last});
    if (comma == std::string_view::npos) return ranges;
    left.remove_prefix(comma + 1);
  }
}

Profile::Profile(std::filesystem::path directory, std::vector<ProfiledSteps> steps)
    : directory_(std::move(directory)), steps_(std::move(steps)) {}

std::shared_ptr<Profile> Profile::from_environment() {
  const char* steps = std::getenv("AF_PROFILE_STEPS");
  if (steps == nullptr || *steps == '\0') return nullptr;
  const char* directory = std::getenv("AF_PROFILE_DIR");
  const char* run = std::getenv("AF_RUN_DIR");
  const std::filesystem::path in = directory != nullptr ? std::filesystem::path(directory)
                                   : run != nullptr     ? std::filesystem::path(run) / "profile"
                                                        : "profile";
  return std::make_shared<Profile>(in, parse_profiled_steps(steps));
}

Profile::~Profile() {
  if (first_ != 0) stop_tracing();
}

const ProfiledSteps* Profile::range_of(int64_t step) const {
  for (const ProfiledSteps& range : steps_)
    if (range.first <= step && step <= range.last) return &range;
  return nullptr;
}

void Profile::begin_if_chosen(int64_t step) {
  if (first_ == 0 && range_of(step) != nullptr) {
    first_ = step;
    start_tracing();
  }
  if (first_ != 0) step_began_ = trace_now();
}

void Profile::on_start(const StartInfo& info) {
  rank_ = info.rank;
  begin_if_chosen(info.step + 1);
}

void Profile::on_step(const StepInfo& info) {
  if (first_ != 0) {
    const std::string step = fmt::format("step {}", info.step);
    detail::add_span(TraceKind::other, step.c_str(), step_began_, 0);
    const ProfiledSteps* range = range_of(info.step);
    if (range == nullptr || info.step >= range->last) write(info.step);
  }
  begin_if_chosen(info.step + 1);
}

void Profile::on_world_change(const WorldChangeInfo& info) {
  if (first_ != 0) write(info.step);
  rank_ = info.rank;
  begin_if_chosen(info.step + 1);
}

void Profile::on_end(const EndInfo& info) {
  if (first_ != 0) write(info.step);
}

void Profile::on_exception(const std::string&) {
  if (first_ != 0) write(0);
}

void Profile::write(int64_t last) {
  const int64_t first = std::exchange(first_, 0);
  const Trace trace = stop_tracing();
  if (trace.events.empty()) return;
  std::filesystem::create_directories(directory_);
  const std::string name =
      fmt::format("steps-{}-{}-rank-{}.json", first, std::max(first, last), rank_);
  write_file_atomically(directory_ / name, to_chrome_json(trace, origin_of(rank_)));
}

}  // namespace af::train
