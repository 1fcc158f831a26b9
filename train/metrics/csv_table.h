// SPDX-License-Identifier: Apache-2.0
// A CSV file (RFC 4180) of reports, whose columns grow.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/metrics/append_file.h"
#include "train/metrics/log_record.h"

namespace af::train {

// Pure. A field in quotes where it needs them; a line of fields back into them.
std::string csv_field(const std::string& text);
std::vector<std::string> csv_fields(std::string_view line);
// "" for a metric that the record has not. Numbers in the shortest form that reads back the same.
std::string csv_line(const LogRecord& record, const std::vector<std::string>& metrics);

// A line without its end is what a killed writer has left: it goes.
void cut_torn_line(AppendFile& file);

class CsvTable {
 public:
  explicit CsvTable(std::filesystem::path path) : path_(std::move(path)) {}
  void write(const std::vector<LogRecord>& records);

 private:
  void open();
  void add_columns(const std::vector<std::string>& names);

  std::filesystem::path path_;
  AppendFile file_;
  std::vector<std::string> metrics_;  // the columns behind time, step and epoch
};

}  // namespace af::train
