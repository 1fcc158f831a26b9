// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/wide_operations.h"

#include <algorithm>
#include <cstring>

#include "collectives/local/futex.h"
#include "collectives/local/signature.h"
#include "collectives/local/stripe.h"

namespace af::local {
namespace {

// Up to this size the first lane alone talks to the other nodes.
constexpr std::size_t kOneLaneBytes = 64 * 1024;

const char* bytes_at(const void* data, std::size_t offset) {
  return static_cast<const char*>(data) + offset;
}
char* bytes_at(void* data, std::size_t offset) {
  return static_cast<char*>(data) + offset;
}

}  // namespace

WideOperations::WideOperations(const Topology& topology, int rank, const Segment& segment,
                               Waiting& waiting, const SharedBuffers& buffers, Exchange& exchange,
                               std::uint64_t generation)
    : topology_(topology),
      rank_(rank),
      node_(topology.node_of[rank]),
      self_(topology.index_of[rank]),
      ranks_(int(topology.nodes[node_].size())),
      position_(topology.node_major_positions()),
      segment_(segment),
      waiting_(waiting),
      buffers_(buffers),
      generation_(generation),
      arrival_(topology, rank, segment, waiting, buffers),
      lane_(topology, rank, exchange) {}

void WideOperations::run(const Operation& operation, const Deadline& deadline) {
  deadline_ = deadline;
  const int world = topology_.world_size();
  const std::size_t bytes = std::max(input_bytes(operation, world), output_bytes(operation, world));
  lanes_ = bytes <= kOneLaneBytes ? 1 : topology_.lanes;
  if (is_lane()) {
    WireHeader header;
    header.signature = signature_of(operation);
    header.index = index_;
    header.count = operation.count;
    header.generation = generation_;
    lane_.begin(header, deadline);
  }
  switch (operation.kind) {
    case OperationKind::barrier:
      barrier(operation);
      break;
    case OperationKind::all_reduce:
      all_reduce(operation);
      break;
    case OperationKind::broadcast:
      broadcast(operation);
      break;
    case OperationKind::all_gather:
      all_gather(operation);
      break;
    case OperationKind::reduce_scatter:
      reduce_scatter(operation);
      break;
  }
  ++index_;
}

int WideOperations::divisor(const Operation& operation) const {
  return operation.op == ReduceOp::avg ? topology_.world_size() : 1;
}

void WideOperations::come(const Operation& operation, std::size_t chunk, const Place& in) {
  if (chunk == 0) {
    arrival_.announce(operation, index_, tick(0), in, {});
  } else {
    publish(segment_.slot(self_).in, tick(chunk));
  }
}

void WideOperations::await_in(const Operation& operation, std::size_t chunk) {
  if (chunk == 0) {
    arrival_.gather(operation, index_, tick(0), deadline_.arrival, topology_.world_size());
  } else {
    waiting_.for_all(&RankSlot::in, tick(chunk), deadline_.arrival);
  }
}

void WideOperations::await_lanes(std::size_t chunk) {
  for (int l = 0; l < lanes_; ++l) {
    if (l != self_) waiting_.for_one(&RankSlot::net, l, tick(chunk), deadline_.result);
  }
}

Block WideOperations::lane_block(int node, std::size_t bytes, std::size_t element_bytes) const {
  const auto& ranks = topology_.nodes[node];
  const Stripe s = stripe(ranks.size() * bytes / element_bytes, self_, lanes_, element_bytes);
  return {std::size_t(position_[ranks.front()]) * bytes + s.begin * element_bytes,
          s.count * element_bytes};
}

void WideOperations::barrier(const Operation& operation) {
  come(operation, 0, {});
  await_in(operation, 0);
  if (is_lane()) {
    lane_.flush();
    publish(segment_.slot(self_).net, tick(0));
  }
  await_lanes(0);
  base_ += 1;
}

void WideOperations::all_reduce(const Operation& operation) {
  const std::size_t size = size_of(operation.type);
  const Place in = buffers_.find(operation.in, operation.count * size);
  const std::size_t chunk = segment_.stage_bytes() / size;
  const std::size_t chunks = (operation.count + chunk - 1) / chunk;
  const bool alone = lanes_ == 1 && operation.count * size <= kOneLaneBytes;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t offset = c * chunk * size;
    const std::size_t length = std::min(chunk, operation.count - c * chunk);
    if (in.buffer == 0) {
      std::memcpy(segment_.stage(self_, tick(c)), bytes_at(operation.in, offset), length * size);
    }
    come(operation, c, in);
    await_in(operation, c);
    // The common result is free: who has come to this chunk has copied the one before out.
    char* result = segment_.result(tick(c));
    if (!alone || self_ == 0) {
      const Stripe s = alone ? Stripe{0, length} : stripe(length, self_, ranks_, size);
      inputs_.clear();
      for (int i = 0; i < ranks_; ++i) {
        const char* shared = arrival_.in()[i];
        inputs_.push_back((shared != nullptr ? shared + offset : segment_.stage(i, tick(c))) +
                          s.begin * size);
      }
      void* output = result + s.begin * size;
      reduce({operation.type, operation.op, inputs_.data(), arrival_.scales().data(), ranks_,
              &output, 1, s.count, 1});
      publish(segment_.slot(self_).reduced, tick(c));
    }
    if (is_lane()) {
      if (!alone) waiting_.for_all(&RankSlot::reduced, tick(c), deadline_.arrival);
      const Stripe s = stripe(length, self_, lanes_, size);
      char* share = result + s.begin * size;
      lane_.all_reduce(share, share, s.count, operation.type, operation.op, divisor(operation));
      publish(segment_.slot(self_).net, tick(c));
    }
    await_lanes(c);
    std::memcpy(bytes_at(operation.out, offset), result, length * size);
  }
  base_ += chunks;
}

void WideOperations::broadcast(const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  const std::size_t chunk = segment_.stage_bytes();
  const std::size_t chunks = (bytes + chunk - 1) / chunk;
  const int root_node = topology_.node_of[operation.root];
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t length = std::min(chunk, bytes - c * chunk);
    char* result = segment_.result(tick(c));
    // The result of three chunks ago was copied out by all before they came to the last but one,
    // and the lanes have awaited that.
    if (operation.root == rank_) std::memcpy(result, bytes_at(operation.in, c * chunk), length);
    come(operation, c, {});
    if (is_lane()) {
      await_in(operation, c);
      const Stripe s = stripe(length, self_, lanes_, 1);
      lane_.broadcast(result + s.begin, s.count, root_node);
      publish(segment_.slot(self_).net, tick(c));
    } else if (c == 0) {
      await_in(operation, c);  // for the check that all called the same
    }
    await_lanes(c);
    std::memcpy(bytes_at(operation.out, c * chunk), result, length);
  }
  base_ += chunks;
}

void WideOperations::all_gather(const Operation& operation) {
  const std::size_t size = size_of(operation.type);
  const std::size_t world = std::size_t(topology_.world_size());
  const std::size_t chunk = segment_.stage_bytes() / size / world;  // elements of each rank
  const std::size_t chunks = (operation.count + chunk - 1) / chunk;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t bytes = std::min(chunk, operation.count - c * chunk) * size;
    char* result = segment_.result(tick(c));
    std::memcpy(result + std::size_t(position_[rank_]) * bytes,
                bytes_at(operation.in, c * chunk * size), bytes);
    come(operation, c, {});
    if (is_lane()) {
      await_in(operation, c);
      std::vector<Block> blocks;
      blocks.reserve(topology_.nodes.size());
      for (int node = 0; node < int(topology_.nodes.size()); ++node) {
        blocks.push_back(lane_block(node, bytes, size));
      }
      lane_.all_gather(result, blocks);
      publish(segment_.slot(self_).net, tick(c));
    } else if (c == 0) {
      await_in(operation, c);
    }
    await_lanes(c);
    for (std::size_t r = 0; r < world; ++r) {
      std::memcpy(bytes_at(operation.out, (r * operation.count + c * chunk) * size),
                  result + std::size_t(position_[r]) * bytes, bytes);
    }
  }
  base_ += chunks;
}

void WideOperations::reduce_scatter(const Operation& operation) {
  const std::size_t size = size_of(operation.type);
  const std::size_t world = std::size_t(topology_.world_size());
  const std::size_t chunk = segment_.stage_bytes() / size / world;
  const std::size_t chunks = (operation.count + chunk - 1) / chunk;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t bytes = std::min(chunk, operation.count - c * chunk) * size;
    char* stage = segment_.stage(self_, tick(c));
    for (std::size_t r = 0; r < world; ++r) {
      std::memcpy(stage + std::size_t(position_[r]) * bytes,
                  bytes_at(operation.in, (r * operation.count + c * chunk) * size), bytes);
    }
    come(operation, c, {});
    await_in(operation, c);
    char* result = segment_.result(tick(c));
    const Stripe s = stripe(world * bytes / size, self_, ranks_, size);
    inputs_.clear();
    for (int i = 0; i < ranks_; ++i) {
      inputs_.push_back(segment_.stage(i, tick(c)) + s.begin * size);
    }
    void* output = result + s.begin * size;
    reduce({operation.type, operation.op, inputs_.data(), arrival_.scales().data(), ranks_, &output,
            1, s.count, 1});
    publish(segment_.slot(self_).reduced, tick(c));
    if (is_lane()) {
      waiting_.for_all(&RankSlot::reduced, tick(c), deadline_.arrival);
      std::vector<Block> blocks;
      blocks.reserve(topology_.nodes.size());
      for (int node = 0; node < int(topology_.nodes.size()); ++node) {
        blocks.push_back(lane_block(node, bytes, size));
      }
      lane_.reduce_scatter(result, blocks, result + blocks[node_].begin, operation.type,
                           operation.op, divisor(operation));
      publish(segment_.slot(self_).net, tick(c));
    }
    await_lanes(c);
    std::memcpy(bytes_at(operation.out, c * chunk * size),
                result + std::size_t(position_[rank_]) * bytes, bytes);
  }
  base_ += chunks;
}

}  // namespace af::local
