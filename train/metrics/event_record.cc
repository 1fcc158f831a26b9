// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/event_record.h"

#include <array>
#include <bit>

namespace af::train {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
    table[i] = crc;
  }
  return table;
}

template <typename Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i)
    bytes += static_cast<char>((value >> (8 * i)) & 0xff);
  return bytes;
}

// Protocol buffers: a field is its number and wire type in a varint, and the value.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(uint64_t field, Wire wire) {
  return varint(field << 3 | static_cast<uint64_t>(wire));
}
std::string double_field(uint64_t field, double value) {
  return key(field, kFixed64) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string float_field(uint64_t field, float value) {
  return key(field, kFixed32) + little_endian(std::bit_cast<uint32_t>(value));
}
std::string bytes_field(uint64_t field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = make_table();
  uint32_t crc = ~0U;
  for (const char byte : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8U;
}

std::string record_of(std::string_view data) {
  const std::string length = little_endian(static_cast<uint64_t>(data.size()));
  return length + little_endian(masked_crc32c(length)) + std::string(data) +
         little_endian(masked_crc32c(data));
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary. Summary: 1 value, repeated, with 1 tag and
// 2 simple_value.

std::string file_version_event(double time) {
  return double_field(1, time) + bytes_field(3, "brain.Event:2");
}

std::string scalars_event(double time, int64_t step, const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, value] : metrics)
    summary += bytes_field(1, bytes_field(1, name) + float_field(2, static_cast<float>(value)));
  return double_field(1, time) + key(2, kVarint) + varint(static_cast<uint64_t>(step)) +
         bytes_field(5, summary);
}

}  // namespace af::train
