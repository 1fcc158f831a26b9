// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_item.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace af::train {
namespace {

using nlohmann::json;
using Kind = MlflowItem::Kind;

constexpr std::size_t kMostKey = 250;
constexpr std::size_t kMostParam = 6000;
constexpr std::size_t kMostTag = 5000;

std::string dumped(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

double to_number(const json& value) {
  if (value.is_number()) return value.get<double>();
  const auto text = value.get<std::string>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return text == "-Infinity" ? -infinity : infinity;
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::metric:
      return "metric";
    case Kind::param:
      return "param";
    case Kind::tag:
      return "tag";
    case Kind::status:
      break;
  }
  return "status";
}

json fields_of(const MlflowItem& item) {
  switch (item.kind) {
    case Kind::metric:
      return {{"key", item.key},
              {"value", number(item.value)},
              {"timestamp", item.time},
              {"step", item.step}};
    case Kind::param:
      return {{"key", item.key}, {"value", item.text.substr(0, kMostParam)}};
    case Kind::tag:
      return {{"key", item.key}, {"value", item.text.substr(0, kMostTag)}};
    case Kind::status:
      break;
  }
  return {{"status", item.text}, {"timestamp", item.time}};
}

}  // namespace

std::string mlflow_key(const std::string& name) {
  std::string key = name.substr(0, kMostKey);
  for (char& c : key) {
    const bool alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric && std::string("_-. :/").find(c) == std::string::npos) c = '_';
  }
  return key.empty() ? "_" : key;
}

std::string spool_line(const MlflowItem& item) {
  return dumped({{name_of(item.kind), fields_of(item)}}) + "\n";
}

std::optional<MlflowItem> parse_spool_line(const std::string& line) {
  const json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || parsed.size() != 1) return std::nullopt;
  const std::string name = parsed.begin().key();
  const json& fields = parsed.begin().value();
  try {
    for (const Kind kind : {Kind::metric, Kind::param, Kind::tag, Kind::status}) {
      if (name != name_of(kind)) continue;
      MlflowItem item;
      item.kind = kind;
      if (kind != Kind::status) item.key = fields.at("key").get<std::string>();
      if (kind == Kind::metric) {
        item.value = to_number(fields.at("value"));
        item.step = fields.at("step").get<int64_t>();
      } else {
        item.text = fields.at(kind == Kind::status ? "status" : "value").get<std::string>();
      }
      if (fields.contains("timestamp")) item.time = fields["timestamp"].get<int64_t>();
      return item;
    }
  } catch (const json::exception&) {
  }
  return std::nullopt;
}

std::string log_batch_body(const std::string& run_id, const std::vector<MlflowItem>& items) {
  json body = {{"run_id", run_id}};
  for (const MlflowItem& item : items)
    body[std::string(name_of(item.kind)) + "s"].push_back(fields_of(item));
  return dumped(body);
}

std::size_t batch_size(const std::vector<MlflowItem>& items) {
  constexpr std::size_t kMostTogether = 1000;
  constexpr std::size_t kMostBytes = 900'000;  // the server's 1 MB, less what is around them
  std::size_t params = 0;
  std::size_t tags = 0;
  std::size_t bytes = 0;
  std::size_t count = 0;
  for (const MlflowItem& item : items) {
    if (item.kind == Kind::status) return count == 0 ? 1 : count;
    params += item.kind == Kind::param ? 1 : 0;
    tags += item.kind == Kind::tag ? 1 : 0;
    bytes += dumped(fields_of(item)).size() + 1;
    const bool fits = params <= 100 && tags <= 100 && bytes <= kMostBytes && count < kMostTogether;
    if (!fits) break;
    ++count;
  }
  return count;
}

}  // namespace af::train
