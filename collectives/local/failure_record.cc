// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/failure_record.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace af::local {

FailureRecord make_record(const CommunicatorError& error, int origin) {
  FailureRecord record;
  record.kind = int(error.kind());
  record.origin = origin;
  record.rank_count = std::uint32_t(std::min(error.ranks().size(), std::size(record.ranks)));
  std::copy_n(error.ranks().begin(), record.rank_count, record.ranks);
  const std::size_t length = std::min(std::strlen(error.what()), sizeof(record.text) - 1);
  std::memcpy(record.text, error.what(), length);
  return record;
}

CommunicatorError to_error(const FailureRecord& record) {
  // The bytes come from another process: trust no length in them.
  const std::size_t count = std::min<std::size_t>(record.rank_count, std::size(record.ranks));
  const std::size_t length = strnlen(record.text, sizeof(record.text));
  std::string text(record.text, length);
  if (text.empty()) text = "failed without a word";
  return CommunicatorError(CommunicatorError::Kind(record.kind),
                           "rank " + std::to_string(record.origin) + " reports: " + text,
                           std::vector<int>(record.ranks, record.ranks + count));
}

}  // namespace af::local
