// SPDX-License-Identifier: Apache-2.0
// A failure as it travels to other ranks: in the shared segment and on control connections.
#pragma once

#include <cstdint>

#include "af/communicator.h"

namespace af::local {

// Plain bytes, the same layout in memory and on the wire (little-endian, as every supported CPU
// is).
struct FailureRecord {
  static constexpr std::uint32_t kMagic = 0x4c494146;  // "FAIL"
  // The same frame carries a question and its answer (inquiry.h): `ranks` is what the answering
  // rank waits for.
  static constexpr std::uint32_t kAsk = 0x3f4b5341;     // "ASK?"
  static constexpr std::uint32_t kAnswer = 0x57534e41;  // "ANSW"
  std::uint32_t magic = kMagic;
  std::int32_t kind = 0;    // CommunicatorError::Kind
  std::int32_t origin = 0;  // rank that found it
  std::uint32_t rank_count = 0;
  std::int32_t ranks[16] = {};  // the first 16 of CommunicatorError::ranks()
  char text[944] = {};          // NUL-terminated, cut where too long
};
static_assert(sizeof(FailureRecord) == 1024);

FailureRecord make_record(const CommunicatorError& error, int origin);
// What another rank throws: "rank 2: <its text>".
CommunicatorError to_error(const FailureRecord& record);

}  // namespace af::local
