// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/flat_operations.h"

#include <cstring>

#include "collectives/local/signature.h"

namespace af::local {
namespace {

void scale(const void* in, void* out, std::size_t count, const Operation& operation) {
  reduce({operation.type, operation.op, &in, &operation.pre_scale, 1, &out, 1, count, 1});
}

}  // namespace

FlatOperations::FlatOperations(const Topology& topology, int rank, Exchange& exchange,
                               std::uint64_t generation)
    : topology_(topology), rank_(rank), generation_(generation), lane_(topology, rank, exchange) {}

void FlatOperations::run(const Operation& operation, const Deadline& deadline) {
  WireHeader header;
  header.signature = signature_of(operation);
  header.index = index_++;
  header.count = operation.count;
  header.generation = generation_;
  lane_.begin(header, deadline);
  switch (operation.kind) {
    case OperationKind::barrier:
      return lane_.flush();
    case OperationKind::all_reduce:
      return all_reduce(operation);
    case OperationKind::all_gather:
      return all_gather(operation);
    case OperationKind::reduce_scatter:
      return reduce_scatter(operation);
    case OperationKind::broadcast: {
      const std::size_t bytes = operation.count * size_of(operation.type);
      if (operation.root == rank_ && operation.in != operation.out) {
        std::memcpy(operation.out, operation.in, bytes);
      }
      // One rank a node: nodes are in the order of ranks.
      return lane_.broadcast(static_cast<char*>(operation.out), bytes, operation.root);
    }
  }
}

void FlatOperations::all_reduce(const Operation& operation) {
  const void* in = operation.in;
  if (operation.pre_scale != 1.0) {
    scale(in, operation.out, operation.count, operation);
    in = operation.out;
  }
  lane_.all_reduce(static_cast<const char*>(in), static_cast<char*>(operation.out), operation.count,
                   operation.type, operation.op,
                   operation.op == ReduceOp::avg ? topology_.world_size() : 1);
}

void FlatOperations::all_gather(const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  char* out = static_cast<char*>(operation.out);
  char* own = out + std::size_t(rank_) * bytes;
  if (operation.in != own) std::memcpy(own, operation.in, bytes);
  std::vector<Block> blocks;
  blocks.reserve(std::size_t(topology_.world_size()));
  for (int r = 0; r < topology_.world_size(); ++r)
    blocks.push_back({std::size_t(r) * bytes, bytes});
  lane_.all_gather(out, blocks);
}

void FlatOperations::reduce_scatter(const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  const int world = topology_.world_size();
  const char* in = static_cast<const char*>(operation.in);
  if (operation.pre_scale != 1.0) {
    // The input stays as it is, so that a caller can try again in the next generation.
    scaled_.resize(bytes * std::size_t(world));
    scale(in, scaled_.data(), operation.count * std::size_t(world), operation);
    in = scaled_.data();
  }
  std::vector<Block> blocks;
  blocks.reserve(std::size_t(world));
  for (int r = 0; r < world; ++r) blocks.push_back({std::size_t(r) * bytes, bytes});
  lane_.reduce_scatter(in, blocks, static_cast<char*>(operation.out), operation.type, operation.op,
                       operation.op == ReduceOp::avg ? world : 1);
}

}  // namespace af::local
