// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/reduction.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "collectives/half.h"

namespace af::nccl {
namespace {

template <typename T>
void store(std::byte* out, T value) {
  std::memcpy(out, &value, sizeof value);
}

void store_scalar(std::byte* out, DataType type, double value) {
  const auto whole = static_cast<std::int64_t>(value);
  switch (type) {
    case DataType::i8:
      return store(out, static_cast<std::int8_t>(whole));
    case DataType::u8:
      return store(out, static_cast<std::uint8_t>(whole));
    case DataType::i32:
      return store(out, static_cast<std::int32_t>(whole));
    case DataType::u32:
      return store(out, static_cast<std::uint32_t>(whole));
    case DataType::i64:
      return store(out, whole);
    case DataType::u64:
      return store(out, static_cast<std::uint64_t>(whole));
    case DataType::f16:
      return store(out, f32_to_f16(static_cast<float>(value)));
    case DataType::bf16:
      return store(out, f32_to_bf16(static_cast<float>(value)));
    case DataType::f32:
      return store(out, static_cast<float>(value));
    case DataType::f64:
      return store(out, value);
  }
}

bool is_integer(DataType type) {
  return static_cast<int>(type) <= static_cast<int>(DataType::u64);
}

}  // namespace

ncclDataType_t nccl_type(DataType type) {
  switch (type) {
    case DataType::i8:
      return ncclInt8;
    case DataType::u8:
      return ncclUint8;
    case DataType::i32:
      return ncclInt32;
    case DataType::u32:
      return ncclUint32;
    case DataType::i64:
      return ncclInt64;
    case DataType::u64:
      return ncclUint64;
    case DataType::f16:
      return ncclFloat16;
    case DataType::bf16:
      return ncclBfloat16;
    case DataType::f32:
      return ncclFloat32;
    case DataType::f64:
      break;
  }
  return ncclFloat64;
}

Reduction reduction_for(DataType type, ReduceOp op, double pre_scale, int world_size) {
  Reduction reduction;
  if (pre_scale == 1.0) {
    switch (op) {
      case ReduceOp::sum:
        reduction.op = ncclSum;
        break;
      case ReduceOp::avg:
        reduction.op = ncclAvg;
        break;
      case ReduceOp::min:
        reduction.op = ncclMin;
        break;
      case ReduceOp::max:
        reduction.op = ncclMax;
        break;
    }
    return reduction;
  }
  const bool average = op == ReduceOp::avg;
  if ((op != ReduceOp::sum && !average) || (average && is_integer(type))) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            std::string("the nccl backend has no pre_scale for ") + name_of(op) +
                                " of " + name_of(type) +
                                ": scale the buffer before, or use backend local");
  }
  reduction.scaled = true;
  store_scalar(reduction.scalar, type, average ? pre_scale / world_size : pre_scale);
  return reduction;
}

}  // namespace af::nccl
