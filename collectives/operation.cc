// SPDX-License-Identifier: Apache-2.0
// What an operation says of itself: its words for messages, its sizes.
#include "collectives/backend.h"

namespace af {

std::string to_string(const Operation& operation) {
  std::string text = name_of(operation.kind);
  if (operation.kind == OperationKind::barrier) return text;
  text += "(count " + std::to_string(operation.count) + ", " + name_of(operation.type);
  if (operation.kind == OperationKind::broadcast) {
    text += ", root " + std::to_string(operation.root);
  } else if (operation.kind != OperationKind::all_gather) {
    text += std::string(", ") + name_of(operation.op);
  }
  return text + ")";
}

std::size_t input_bytes(const Operation& operation, int world_size) {
  if (operation.kind == OperationKind::barrier) return 0;
  const std::size_t bytes = operation.count * size_of(operation.type);
  return operation.kind == OperationKind::reduce_scatter ? bytes * world_size : bytes;
}

std::size_t output_bytes(const Operation& operation, int world_size) {
  if (operation.kind == OperationKind::barrier) return 0;
  const std::size_t bytes = operation.count * size_of(operation.type);
  return operation.kind == OperationKind::all_gather ? bytes * world_size : bytes;
}

}  // namespace af
