// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_notice.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <string_view>

namespace af {
namespace {

// The value of the first " NAME=value" in `text`; values have no spaces.
std::optional<std::string_view> field(std::string_view text, std::string_view name) {
  const std::string key = fmt::format(" {}=", name);
  const size_t begin = text.find(key);
  if (begin == text.npos) return std::nullopt;
  text.remove_prefix(begin + key.size());
  return text.substr(0, text.find_first_of(" \n"));
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> time_of(std::optional<std::string_view> text) {
  if (!text) return std::nullopt;
  if (const auto seconds = number(*text)) return seconds;
  std::tm parts{};
  const std::string copy(*text);
  const char* end = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  parts.tm_isdst = -1;
  return static_cast<int64_t>(std::mktime(&parts));
}

// "1-02:03:04", "00:10:00"; nothing for UNLIMITED.
std::optional<int64_t> duration_of(std::optional<std::string_view> text) {
  if (!text) return std::nullopt;
  int64_t days = 0, hours = 0, minutes = 0, seconds = 0;
  std::string copy(*text);
  const size_t dash = copy.find('-');
  if (dash != copy.npos) {
    const auto count = number(copy.substr(0, dash));
    if (!count) return std::nullopt;
    days = *count;
    copy.erase(0, dash + 1);
  }
  if (std::sscanf(copy.c_str(), "%ld:%ld:%ld", &hours, &minutes, &seconds) != 3)
    return std::nullopt;
  return ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
}

}  // namespace

std::optional<JobStatus> parse_job_status(const std::string& text) {
  if (!text.starts_with("JobId=")) return std::nullopt;
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  // A job's name may hold anything, "JobState=FAILED" too: what is wanted lies behind a field that
  // comes after the name, and before the names of files.
  size_t begin = line.find(" MCS_label=");
  if (begin == line.npos) begin = 0;
  const std::string_view body = line.substr(begin, line.find(" Command=", begin) - begin);
  JobStatus status;
  const auto state = field(body, "JobState");
  if (!state) return std::nullopt;
  status.state = *state;
  status.reason = field(body, "Reason").value_or("");
  status.restarts = static_cast<int>(number(field(body, "Restarts").value_or("0")).value_or(0));
  status.batch = field(body, "BatchFlag").value_or("0") != "0";
  status.requeue = field(body, "Requeue").value_or("0") != "0";
  status.start_time = time_of(field(body, "StartTime"));
  status.end_time = time_of(field(body, "EndTime"));
  status.preempt_time = time_of(field(body, "PreemptTime"));
  status.time_limit = duration_of(field(body, "TimeLimit"));
  return status;
}

std::optional<int> parse_kill_wait(const std::string& text) {
  const size_t name = text.find("KillWait ");
  const size_t equals = text.find('=', name == text.npos ? text.size() : name);
  if (equals == text.npos) return std::nullopt;
  int seconds = 0;
  if (std::sscanf(text.c_str() + equals, "= %d sec", &seconds) != 1) return std::nullopt;
  return seconds;
}

JobNotice job_notice(const JobStatus& status, int attempt, int kill_wait, int64_t now) {
  // The record is of the next attempt already: nothing in it is about this one any more.
  if (status.restarts > attempt)
    return {.end = JobEnd::kRequeued, .deadline = now + kill_wait, .final = true};
  const bool runs =
      status.state == "RUNNING" || status.state == "SUSPENDED" || status.state == "CONFIGURING";
  if (runs) {
    // EndTime is the earliest end of the grace time.
    if (status.preempt_time) return {.end = JobEnd::kPreempted, .deadline = status.end_time};
    return {};
  }
  JobNotice notice = {.end = JobEnd::kCancelled, .deadline = now + kill_wait, .final = true};
  if (status.end_time) notice.deadline = *status.end_time + kill_wait;
  if (status.reason == "TimeLimit" || status.state == "TIMEOUT")
    notice.end = JobEnd::kTimeLimit;
  else if (status.preempt_time || status.state == "PREEMPTED")
    notice.end = JobEnd::kPreempted;
  return notice;
}

std::string to_text(JobEnd end) {
  switch (end) {
    case JobEnd::kNone:
      return "";
    case JobEnd::kPreempted:
      return "preempted";
    case JobEnd::kTimeLimit:
      return "time limit";
    case JobEnd::kCancelled:
      return "cancelled";
    case JobEnd::kRequeued:
      return "requeued by Slurm";
  }
  return "";
}

std::string notice_text(const JobNotice& notice, int64_t now) {
  std::string text = to_text(notice.end);
  if (!notice.deadline) return text + ", the job ends";
  const std::time_t deadline = *notice.deadline;
  std::tm parts{};
  ::localtime_r(&deadline, &parts);
  char clock[16];
  std::strftime(clock, sizeof clock, "%H:%M:%S", &parts);
  return fmt::format("{}, the job ends by {} (in {} s)", text, clock,
                     std::max<int64_t>(0, *notice.deadline - now));
}

}  // namespace af
