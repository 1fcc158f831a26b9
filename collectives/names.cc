// SPDX-License-Identifier: Apache-2.0
// Names and sizes of the public enumerations, and the error type.
#include "collectives/backend.h"

namespace af {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::i8:
    case DataType::u8:
      return 1;
    case DataType::f16:
    case DataType::bf16:
      return 2;
    case DataType::i32:
    case DataType::u32:
    case DataType::f32:
      return 4;
    case DataType::i64:
    case DataType::u64:
    case DataType::f64:
      return 8;
  }
  throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                          "no data type has the number " + std::to_string(int(type)));
}

const char* name_of(DataType type) {
  static constexpr const char* kNames[] = {"i8",  "u8",  "i32",  "u32", "i64",
                                           "u64", "f16", "bf16", "f32", "f64"};
  return unsigned(type) < std::size(kNames) ? kNames[int(type)] : "?";
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "avg", "min", "max"};
  return unsigned(op) < std::size(kNames) ? kNames[int(op)] : "?";
}

const char* name_of(BackendKind kind) {
  static constexpr const char* kNames[] = {"auto", "local", "mpi", "nccl"};
  return unsigned(kind) < std::size(kNames) ? kNames[int(kind)] : "?";
}

const char* name_of(OperationKind kind) {
  static constexpr const char* kNames[] = {"all_reduce", "broadcast", "all_gather",
                                           "reduce_scatter", "barrier"};
  return unsigned(kind) < std::size(kNames) ? kNames[int(kind)] : "?";
}

CommunicatorError::CommunicatorError(Kind kind, const std::string& what, std::vector<int> ranks)
    : std::runtime_error(what), kind_(kind), ranks_(std::move(ranks)) {}
CommunicatorError::~CommunicatorError() = default;

Store::~Store() = default;

}  // namespace af
