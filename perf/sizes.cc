// SPDX-License-Identifier: Apache-2.0
#include "perf/sizes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "common/error.h"

namespace af::perf {

std::size_t parse_bytes(const std::string& text) {
  std::size_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  std::string unit(rest, end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  const std::string units = "KMGT";
  int shift = 0;
  bool good = error == std::errc();
  if (good && !unit.empty() && unit != "B") {
    const std::size_t at = units.find(unit.front());
    const std::string tail = unit.substr(1);
    good = at != std::string::npos && (tail.empty() || tail == "B" || tail == "IB");
    shift = good ? 10 * static_cast<int>(at + 1) : 0;
  }
  if (good) good = number <= (std::size_t{1} << 50 >> shift);
  if (!good) throw Error::format("not a size: '{}' (examples: 8, 64K, 25M, 1G)", text);
  return number << shift;
}

std::vector<std::size_t> sizes_between(std::size_t begin, std::size_t end, double factor) {
  if (begin > end) throw Error::format("first size {} is above the last, {}", begin, end);
  if (!(factor > 1.0)) throw Error::format("step factor {} is not above 1", factor);
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = begin; bytes <= end;) {
    sizes.push_back(bytes);
    const auto next = static_cast<std::size_t>(std::floor(static_cast<double>(bytes) * factor));
    bytes = std::max(next, bytes + 1);
  }
  return sizes;
}

Shape shape_of(OperationKind kind, std::size_t bytes, std::size_t element, int world_size) {
  const auto world = static_cast<std::size_t>(world_size);
  switch (kind) {
    case OperationKind::barrier:
      return {0, 0};
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter: {
      const std::size_t count = bytes / element / world;
      return {count * element * world, count};
    }
    case OperationKind::all_reduce:
    case OperationKind::broadcast:
      break;
  }
  return {bytes / element * element, bytes / element};
}

double algorithm_bandwidth(std::size_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

double bus_factor(OperationKind kind, int world_size) {
  const double n = world_size;
  switch (kind) {
    case OperationKind::all_reduce:
      return 2 * (n - 1) / n;
    case OperationKind::all_gather:
    case OperationKind::reduce_scatter:
      return (n - 1) / n;
    case OperationKind::broadcast:
    case OperationKind::barrier:
      break;
  }
  return 1;
}

}  // namespace af::perf
