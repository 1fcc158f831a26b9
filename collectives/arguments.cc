// SPDX-License-Identifier: Apache-2.0
#include "collectives/arguments.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace af {
namespace {

[[noreturn]] void reject(const Operation& operation, const std::string& why) {
  throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                          to_string(operation) + ": " + why);
}

bool is_integer(DataType type) {
  return int(type) <= int(DataType::u64);
}

// Both ranges begin at or after the other's begin and overlap.
bool overlap(const char* a, std::size_t a_bytes, const char* b, std::size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

void check_operation(const Operation& operation, int rank, int world_size) {
  if (operation.kind == OperationKind::barrier) return;
  if (unsigned(operation.type) > unsigned(DataType::f64)) {
    reject(operation, "no data type has the number " + std::to_string(int(operation.type)));
  }
  if (unsigned(operation.op) > unsigned(ReduceOp::max)) {
    reject(operation, "no reduction has the number " + std::to_string(int(operation.op)));
  }
  const bool is_broadcast = operation.kind == OperationKind::broadcast;
  if (is_broadcast && (operation.root < 0 || operation.root >= world_size)) {
    reject(operation, "the root must be a rank from 0 to " + std::to_string(world_size - 1));
  }
  const std::size_t size = size_of(operation.type);
  if (operation.count >
      std::size_t(std::numeric_limits<std::int64_t>::max()) / size / std::size_t(world_size)) {
    reject(operation, "the count is too large");
  }
  const bool reduces = operation.kind == OperationKind::all_reduce ||
                       operation.kind == OperationKind::reduce_scatter;
  if (!std::isfinite(operation.pre_scale)) reject(operation, "pre_scale is not a finite number");
  if (operation.pre_scale != 1.0) {
    if (!reduces) reject(operation, "pre_scale is for all_reduce and reduce_scatter");
    if (is_integer(operation.type) && (operation.pre_scale != std::floor(operation.pre_scale) ||
                                       std::fabs(operation.pre_scale) > 0x1p53)) {
      reject(operation, "pre_scale must be a whole number for integers");
    }
  }
  if (operation.count == 0) return;
  const bool reads = !is_broadcast || operation.root == rank;
  if (operation.out == nullptr) reject(operation, "out is null");
  if (reads && operation.in == nullptr) reject(operation, "in is null");
  if (!reads) return;
  const char* in = static_cast<const char*>(operation.in);
  const char* out = static_cast<const char*>(operation.out);
  const std::size_t part = operation.count * size;
  const std::size_t own = std::size_t(rank) * part;
  // The one overlap that each operation allows.
  const bool in_place =
      (operation.kind == OperationKind::all_gather && in == out + own) ||
      (operation.kind == OperationKind::reduce_scatter && out == in + own) ||
      ((is_broadcast || operation.kind == OperationKind::all_reduce) && in == out);
  if (!in_place &&
      overlap(in, input_bytes(operation, world_size), out, output_bytes(operation, world_size))) {
    reject(operation, "in and out overlap");
  }
}

void check_options(const Options& options) {
  auto fail = [](const std::string& what) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument, what);
  };
  if (options.world_size < 1 || options.world_size > 65536) {
    fail("a world of " + std::to_string(options.world_size) + " ranks is not possible");
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    fail("rank " + std::to_string(options.rank) + " is not in a world of " +
         std::to_string(options.world_size));
  }
  if (options.timeout.count() <= 0) fail("the timeout must be positive");
  if (unsigned(options.backend) > unsigned(BackendKind::nccl)) {
    fail("no backend has the number " + std::to_string(int(options.backend)));
  }
}

}  // namespace af
