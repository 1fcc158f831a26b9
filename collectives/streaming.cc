// SPDX-License-Identifier: Apache-2.0
#include "collectives/streaming.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace af {

#if defined(__x86_64__)
void copy_past_cache(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  // Whole lines only: a part of one would be merged with what memory holds.
  const std::size_t head = (64 - reinterpret_cast<std::uintptr_t>(out) % 64) % 64;
  if (bytes < head + 64) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(in + at);
    auto* target = reinterpret_cast<__m128i*>(out + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1),
                  c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(out + at, in + at, bytes - at);
  _mm_sfence();
}
#else
void copy_past_cache(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

}  // namespace af
