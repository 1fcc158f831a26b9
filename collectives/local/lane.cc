// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/lane.h"

#include "collectives/local/stripe.h"

namespace af::local {
namespace {

// Up to this size all send everything to all: more bytes, but one step instead of two.
constexpr std::size_t kOneStepBytes = 16 * 1024;

}  // namespace

Lane::Lane(const Topology& topology, int rank, Exchange& exchange)
    : self_(topology.node_of[rank]), exchange_(exchange) {
  const int index = topology.index_of[rank];
  for (const auto& node : topology.nodes) {
    peers_.push_back(index < int(node.size()) ? node[index] : -1);
  }
}

void Lane::begin(const WireHeader& header, const Deadline& deadline) {
  deadline_ = deadline;
  exchange_.begin(header);
}

void Lane::flush() {
  exchange_.run(deadline_.network, deadline_.timeout);
}

char* Lane::scratch(int node, std::size_t bytes) {
  return scratch_.data() + std::size_t(node < self_ ? node : node - 1) * bytes;
}

void Lane::receive_all(std::size_t bytes) {
  if (scratch_.size() < (peers_.size() - 1) * bytes) scratch_.resize((peers_.size() - 1) * bytes);
  for (int node = 0; node < int(peers_.size()); ++node) {
    if (node != self_) exchange_.receive(peers_[node], scratch(node, bytes), bytes);
  }
}

void Lane::combine(const char* own, char* out, std::size_t bytes, DataType type, ReduceOp op,
                   int divisor) {
  std::vector<const void*> inputs;
  inputs.reserve(peers_.size());
  for (int node = 0; node < int(peers_.size()); ++node) {
    inputs.push_back(node == self_ ? own : scratch(node, bytes));
  }
  void* output = out;
  reduce({type, op, inputs.data(), nullptr, int(inputs.size()), &output, 1, bytes / size_of(type),
          divisor});
}

void Lane::all_reduce(char* data, std::size_t count, DataType type, ReduceOp op, int divisor) {
  const std::size_t size = size_of(type);
  if (count * size <= kOneStepBytes) {
    receive_all(count * size);
    for (int node = 0; node < int(peers_.size()); ++node) {
      if (node != self_) exchange_.send(peers_[node], data, count * size);
    }
    flush();
    return combine(data, data, count * size, type, op, divisor);
  }
  std::vector<Block> blocks;
  blocks.reserve(peers_.size());
  for (int node = 0; node < int(peers_.size()); ++node) {
    const Stripe s = stripe(count, node, int(peers_.size()), size);
    blocks.push_back({s.begin * size, s.count * size});
  }
  reduce_scatter(data, blocks, data + blocks[self_].begin, type, op, divisor);
  all_gather(data, blocks);
}

void Lane::reduce_scatter(const char* base, const std::vector<Block>& blocks, char* out,
                          DataType type, ReduceOp op, int divisor) {
  const Block& own = blocks[self_];
  receive_all(own.bytes);
  for (int node = 0; node < int(peers_.size()); ++node) {
    if (node != self_) exchange_.send(peers_[node], base + blocks[node].begin, blocks[node].bytes);
  }
  flush();
  combine(base + own.begin, out, own.bytes, type, op, divisor);
}

void Lane::all_gather(char* base, const std::vector<Block>& blocks) {
  for (int node = 0; node < int(peers_.size()); ++node) {
    if (node == self_) continue;
    exchange_.send(peers_[node], base + blocks[self_].begin, blocks[self_].bytes);
    exchange_.receive(peers_[node], base + blocks[node].begin, blocks[node].bytes);
  }
  flush();
}

void Lane::broadcast(char* data, std::size_t bytes, int root_node) {
  if (root_node != self_) {
    exchange_.receive(peers_[root_node], data, bytes);
  } else {
    for (int node = 0; node < int(peers_.size()); ++node) {
      if (node != self_) exchange_.send(peers_[node], data, bytes);
    }
  }
  flush();
}

}  // namespace af::local
