// SPDX-License-Identifier: Apache-2.0
// The pure parts of the nccl backend.
#include <gtest/gtest.h>

#include <cstring>

#include "collectives/nccl/reduction.h"
#include "collectives/nccl/rendezvous.h"

namespace af::nccl {
namespace {

template <typename T>
T scalar_of(const Reduction& reduction) {
  T value;
  std::memcpy(&value, reduction.scalar, sizeof value);
  return value;
}

TEST(ReductionFor, UsesNcclsOwnOperatorsWithoutAScale) {
  EXPECT_EQ(reduction_for(DataType::f32, ReduceOp::sum, 1, 4).op, ncclSum);
  EXPECT_EQ(reduction_for(DataType::i32, ReduceOp::avg, 1, 4).op, ncclAvg);
  EXPECT_EQ(reduction_for(DataType::bf16, ReduceOp::min, 1, 4).op, ncclMin);
  EXPECT_EQ(reduction_for(DataType::u8, ReduceOp::max, 1, 4).op, ncclMax);
  EXPECT_FALSE(reduction_for(DataType::u8, ReduceOp::max, 1, 4).scaled);
}

TEST(ReductionFor, WritesTheScaleInTheTypeOfTheElements) {
  EXPECT_TRUE(reduction_for(DataType::f32, ReduceOp::sum, 0.5, 4).scaled);
  EXPECT_EQ(scalar_of<float>(reduction_for(DataType::f32, ReduceOp::sum, 0.5, 4)), 0.5f);
  EXPECT_EQ(scalar_of<double>(reduction_for(DataType::f64, ReduceOp::avg, 0.5, 4)), 0.125);
  EXPECT_EQ(scalar_of<std::int8_t>(reduction_for(DataType::i8, ReduceOp::sum, -3, 4)), -3);
  EXPECT_EQ(scalar_of<std::uint64_t>(reduction_for(DataType::u64, ReduceOp::sum, 7, 4)), 7u);
  EXPECT_EQ(scalar_of<std::uint16_t>(reduction_for(DataType::f16, ReduceOp::sum, 0.5, 4)), 0x3800);
  EXPECT_EQ(scalar_of<std::uint16_t>(reduction_for(DataType::bf16, ReduceOp::sum, 0.5, 4)), 0x3f00);
}

TEST(ReductionFor, RefusesWhatNeedsAKernel) {
  EXPECT_THROW(reduction_for(DataType::f32, ReduceOp::min, 2, 4), CommunicatorError);
  EXPECT_THROW(reduction_for(DataType::f32, ReduceOp::max, 2, 4), CommunicatorError);
  EXPECT_THROW(reduction_for(DataType::i32, ReduceOp::avg, 2, 4), CommunicatorError);
}

TEST(Types, AreNccls) {
  EXPECT_EQ(nccl_type(DataType::i8), ncclInt8);
  EXPECT_EQ(nccl_type(DataType::f16), ncclFloat16);
  EXPECT_EQ(nccl_type(DataType::bf16), ncclBfloat16);
  EXPECT_EQ(nccl_type(DataType::f64), ncclFloat64);
}

TEST(Hex, GoesThereAndBackForAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(from_hex(to_hex(bytes)), bytes);
  for (const char* damaged : {"0", "0g", "xyz1"}) EXPECT_EQ(from_hex(damaged), "");
}

}  // namespace
}  // namespace af::nccl
