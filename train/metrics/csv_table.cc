// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/csv_table.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/atomic_file.h"
#include "common/error.h"

namespace af::train {
namespace {

constexpr const char* kFixed = "time,step,epoch";

std::string header_of(const std::vector<std::string>& metrics) {
  std::string line = kFixed;
  for (const std::string& name : metrics) line += "," + csv_field(name);
  return line + "\n";
}

}  // namespace

std::string csv_field(const std::string& text) {
  std::string plain;
  // A line is a record here, so that a torn one can be told: no line breaks within fields.
  for (const char c : text) plain += c == '\n' || c == '\r' ? ' ' : c;
  if (plain.find_first_of(",\"") == std::string::npos) return plain;
  std::string quoted = "\"";
  for (const char c : plain) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::vector<std::string> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

std::string csv_line(const LogRecord& record, const std::vector<std::string>& metrics) {
  std::string line = fmt::format("{:.6f},{},{}", record.time, record.step, record.epoch);
  for (const std::string& name : metrics) {
    const auto found = record.metrics.find(name);
    line += found == record.metrics.end() ? "," : fmt::format(",{}", found->second);
  }
  return line + "\n";
}

void cut_torn_line(AppendFile& file) {
  const std::string text = read_file(file.path());
  const auto end = text.rfind('\n');
  const std::size_t whole = end == std::string::npos ? 0 : end + 1;
  if (whole < text.size()) file.truncate(static_cast<int64_t>(whole));
}

void CsvTable::open() {
  AppendFile file(path_);
  cut_torn_line(file);
  const std::string text = read_file(path_);
  std::vector<std::string> metrics;
  if (!text.empty()) {
    const auto columns = csv_fields(text.substr(0, text.find('\n')));
    if (!text.starts_with(kFixed))
      throw Error::format("{} does not begin with {}: it is not a table of reports", path_.string(),
                          kFixed);
    metrics.assign(columns.begin() + 3, columns.end());
  }
  metrics_ = std::move(metrics);
  file_ = std::move(file);
}

void CsvTable::add_columns(const std::vector<std::string>& names) {
  std::vector<std::string> metrics = metrics_;
  metrics.insert(metrics.end(), names.begin(), names.end());
  std::string text = read_file(path_);
  if (text.empty()) {
    file_.append(header_of(metrics));
  } else {
    // The rows get empty fields, and the file is replaced as a whole.
    std::string wider = header_of(metrics);
    for (std::size_t at = text.find('\n') + 1; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      wider += text.substr(at, end - at) + std::string(names.size(), ',') + "\n";
      at = end + 1;
    }
    write_file_atomically(path_, wider);
    file_ = AppendFile(path_);
  }
  metrics_ = std::move(metrics);
}

void CsvTable::write(const std::vector<LogRecord>& records) {
  if (!file_) open();
  std::vector<std::string> fresh;
  for (const LogRecord& one : records)
    for (const auto& [metric, value] : one.metrics) {
      const auto is = [&](const std::string& name) { return name == metric; };
      if (std::none_of(metrics_.begin(), metrics_.end(), is) &&
          std::none_of(fresh.begin(), fresh.end(), is))
        fresh.push_back(metric);
    }
  if (!fresh.empty() || file_.size() == 0) add_columns(fresh);
  std::string text;
  for (const LogRecord& one : records) text += csv_line(one, metrics_);
  file_.append(text);
}

}  // namespace af::train
