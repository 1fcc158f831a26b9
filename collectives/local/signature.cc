// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/signature.h"

namespace af::local {

// bits 0-3 kind, 4-7 type, 8-11 op, 12-31 root.
std::uint32_t signature_of(const Operation& operation) {
  const auto kind = operation.kind;
  std::uint32_t signature = std::uint32_t(kind);
  if (kind == OperationKind::barrier) return signature;
  signature |= std::uint32_t(operation.type) << 4;
  if (kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter) {
    signature |= std::uint32_t(operation.op) << 8;
  }
  if (kind == OperationKind::broadcast) signature |= std::uint32_t(operation.root) << 12;
  return signature;
}

std::string describe_call(std::uint32_t signature, std::uint64_t count) {
  Operation operation;
  operation.kind = OperationKind(signature & 15);
  operation.type = DataType(signature >> 4 & 15);
  operation.op = ReduceOp(signature >> 8 & 15);
  operation.root = int(signature >> 12);
  operation.count = count;
  return to_string(operation);
}

}  // namespace af::local
