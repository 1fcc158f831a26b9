// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/event_record.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace af::train {
namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    text += two;
  }
  return text;
}

// RFC 3720, B.4, and the tests of TensorBoard's data server.
TEST(EventRecord, ChecksumsAreTheStandards) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(masked_crc32c("\x1a\x11"
                          "CRC test, one two"),
            0x5794d08aU);
}

// What TensorBoard's own writer makes of the same event.
TEST(EventRecord, ARecordIsThatOfTensorBoard) {
  EXPECT_EQ(hex(record_of(scalars_event(1700000001, 300, {{"train/loss", 0.25}}))),
            "2100000000000000017becf60900004040fc54d94110ac022a130a110a0a747261696e2f6c6f73731500"
            "00803e272146cf");
}

TEST(EventRecord, LongTextsAndNegativeStepsHaveLongVarints) {
  const std::string name(300, 'm');
  const std::string event = scalars_event(1, -1, {{name, 0.0}});
  EXPECT_NE(hex(event).find("10ffffffffffffffffff01"), std::string::npos);
  EXPECT_NE(hex(event).find("0aac02" + hex("mmm")), std::string::npos);
  EXPECT_EQ(hex(file_version_event(1)), "09000000000000f03f1a0d" + hex("brain.Event:2"));
}

}  // namespace
}  // namespace af::train
