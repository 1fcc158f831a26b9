// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/node_operations.h"

#include <algorithm>
#include <cstring>

#include "collectives/local/futex.h"
#include "collectives/local/stripe.h"
#include "collectives/reduce.h"
#include "collectives/streaming.h"

namespace af::local {
namespace {

const char* bytes_at(const void* data, std::size_t offset) {
  return static_cast<const char*>(data) + offset;
}
char* bytes_at(void* data, std::size_t offset) {
  return static_cast<char*>(data) + offset;
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes != 0) std::memcpy(to, from, bytes);
}

void copy(void* to, const void* from, std::size_t bytes, bool streaming) {
  if (!streaming) return copy(to, from, bytes);
  if (to != from) copy_past_cache(to, from, bytes);
}

std::size_t chunks_of(std::size_t count, std::size_t chunk) {
  return (count + chunk - 1) / chunk;
}

}  // namespace

NodeOperations::NodeOperations(const Topology& topology, int rank, const Segment& segment,
                               Waiting& waiting, const SharedBuffers& buffers)
    : ranks_(int(topology.nodes[topology.node_of[rank]].size())),
      self_(topology.index_of[rank]),
      segment_(segment),
      waiting_(waiting),
      buffers_(buffers),
      arrival_(topology, rank, segment, waiting, buffers) {}

void NodeOperations::run(const Operation& operation, const Deadline& deadline) {
  deadline_ = deadline.arrival;
  const std::size_t bytes =
      std::max(input_bytes(operation, ranks_), output_bytes(operation, ranks_));
  if (bytes <= Segment::kSmallBytes) {
    small(operation);
  } else if (operation.kind == OperationKind::all_reduce) {
    all_reduce(operation);
  } else if (operation.kind == OperationKind::broadcast) {
    broadcast(operation);
  } else if (operation.kind == OperationKind::all_gather) {
    all_gather(operation);
  } else {
    reduce_scatter(operation);
  }
  ++index_;
}

void NodeOperations::meet(const Operation& operation, const Place& in, const Place& out) {
  arrival_.announce(operation, index_, tick(0), in, out);
  arrival_.gather(operation, index_, tick(0), deadline_, ranks_);
}

void NodeOperations::publish_in(std::size_t chunk) {
  publish(segment_.slot(self_).in, tick(chunk));
}

void NodeOperations::publish_reduced(std::size_t chunk) {
  publish(segment_.slot(self_).reduced, tick(chunk));
}

void NodeOperations::await_reduced(std::size_t chunk) {
  waiting_.for_all(&RankSlot::reduced, tick(chunk), deadline_);
}

void NodeOperations::small(const Operation& operation) {
  // Places alternate: who still reads the one of the last operation but one has not come to the
  // last, and this rank has left that.
  const bool gives = operation.kind != OperationKind::broadcast ||
                     operation.root == self_;  // one node: local index == rank
  if (gives) copy(segment_.small(self_, index_), operation.in, input_bytes(operation, ranks_));
  meet(operation, {}, {});
  base_ += 1;
  const std::size_t bytes = operation.count * size_of(operation.type);
  switch (operation.kind) {
    case OperationKind::barrier:
      return;
    case OperationKind::broadcast:
      return copy(operation.out, segment_.small(operation.root, index_), bytes);
    case OperationKind::all_gather:
      for (int r = 0; r < ranks_; ++r) {
        copy(bytes_at(operation.out, std::size_t(r) * bytes), segment_.small(r, index_), bytes);
      }
      return;
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter: {
      const bool scatter = operation.kind == OperationKind::reduce_scatter;
      const std::size_t offset = scatter ? std::size_t(self_) * bytes : 0;
      inputs_.clear();
      for (int r = 0; r < ranks_; ++r) inputs_.push_back(segment_.small(r, index_) + offset);
      void* output = operation.out;
      return reduce({operation.type, operation.op, inputs_.data(), arrival_.scales().data(), ranks_,
                     &output, 1, operation.count, operation.op == ReduceOp::avg ? ranks_ : 1});
    }
  }
}

void NodeOperations::all_reduce(const Operation& operation) {
  const std::size_t size = size_of(operation.type);
  const Place in = buffers_.find(operation.in, operation.count * size);
  const Place out = buffers_.find(operation.out, operation.count * size);
  std::size_t chunk = segment_.stage_bytes() / size;
  auto length = [&](std::size_t c) { return std::min(chunk, operation.count - c * chunk); };

  // A rank's own stripe is read by nobody else: it need not go through the segment.
  auto copy_in = [&](std::size_t c) {
    if (in.buffer != 0) return;
    for (int r = 0; r < ranks_; ++r) {
      if (r == self_) continue;
      const Stripe s = stripe(length(c), r, ranks_, size);
      copy(segment_.stage(self_, tick(c)) + s.begin * size,
           bytes_at(operation.in, (c * chunk + s.begin) * size), s.count * size);
    }
  };
  auto reduce_own_stripe = [&](std::size_t c) {
    const Stripe s = stripe(length(c), self_, ranks_, size);
    const std::size_t offset = (c * chunk + s.begin) * size;  // in the user's buffers
    inputs_.clear();
    outputs_.clear();
    for (int r = 0; r < ranks_; ++r) {
      if (r == self_) {
        inputs_.push_back(bytes_at(operation.in, offset));
      } else if (arrival_.in()[r] != nullptr) {
        inputs_.push_back(arrival_.in()[r] + offset);
      } else {
        inputs_.push_back(segment_.stage(r, tick(c)) + s.begin * size);
      }
    }
    outputs_.push_back(bytes_at(operation.out, offset));
    if (!arrival_.all_out_shared()) {
      outputs_.push_back(segment_.result(tick(c)) + s.begin * size);
    } else {
      for (int r = 0; r < ranks_; ++r) {
        if (r != self_) outputs_.push_back(arrival_.out()[r] + offset);
      }
    }
    reduce({operation.type, operation.op, inputs_.data(), arrival_.scales().data(), ranks_,
            outputs_.data(), int(outputs_.size()), s.count,
            operation.op == ReduceOp::avg ? ranks_ : 1});
  };
  auto copy_out = [&](std::size_t c) {
    if (arrival_.all_out_shared()) return;
    for (int r = 0; r < ranks_; ++r) {
      if (r == self_) continue;
      const Stripe s = stripe(length(c), r, ranks_, size);
      copy(bytes_at(operation.out, (c * chunk + s.begin) * size),
           segment_.result(tick(c)) + s.begin * size, s.count * size);
    }
  };

  copy_in(0);
  meet(operation, in, out);
  if (arrival_.all_in_shared() && arrival_.all_out_shared()) chunk = operation.count;
  const std::size_t chunks = chunks_of(operation.count, chunk);
  // Of chunks [0, copied) the input is in, [0, reduced) this rank's stripe is done, [0, done) the
  // result is out. The place of chunk c is free for c + stages once c is done here: all have
  // reduced it. Its result is overwritten by who has seen all inputs of c + stages, so after all
  // are done.
  std::size_t copied = 1, reduced = 0, done = 0;
  while (done < chunks) {
    const bool may_copy = copied < chunks && copied < done + segment_.stages();
    const bool may_reduce = reduced < copied;
    if (may_reduce && waiting_.all_reached(&RankSlot::in, tick(reduced))) {
      reduce_own_stripe(reduced);
      publish_reduced(reduced++);
    } else if (done < reduced && waiting_.all_reached(&RankSlot::reduced, tick(done))) {
      copy_out(done++);
    } else if (may_copy) {
      copy_in(copied);
      publish_in(copied++);
    } else if (may_reduce) {
      waiting_.for_all(&RankSlot::in, tick(reduced), deadline_);
    } else {
      await_reduced(done);
    }
  }
  base_ += chunks;
}

void NodeOperations::broadcast(const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  const int root = operation.root;
  const bool is_root = root == self_;
  const Place in = is_root ? buffers_.find(operation.in, bytes) : Place{};
  std::size_t chunk = segment_.stage_bytes();
  auto length = [&](std::size_t c) { return std::min(chunk, bytes - c * chunk); };
  auto copy_in = [&](std::size_t c) {
    if (!is_root || in.buffer != 0) return;
    copy(segment_.stage(self_, tick(c)), bytes_at(operation.in, c * chunk), length(c));
  };
  copy_in(0);
  meet(operation, in, {});
  const char* shared = arrival_.in()[root];
  if (shared != nullptr) chunk = bytes;
  const std::size_t chunks = chunks_of(bytes, chunk);
  for (std::size_t c = 0; c < chunks; ++c) {
    if (is_root) {
      if (c >= segment_.stages()) await_reduced(c - segment_.stages());
      if (c > 0) copy_in(c);
      publish_in(c);
      copy(bytes_at(operation.out, c * chunk), bytes_at(operation.in, c * chunk), length(c));
    } else {
      waiting_.for_one(&RankSlot::in, root, tick(c), deadline_);
      copy(bytes_at(operation.out, c * chunk),
           shared != nullptr ? shared + c * chunk : segment_.stage(root, tick(c)), length(c));
    }
    publish_reduced(c);
  }
  if (is_root) await_reduced(chunks - 1);
  base_ += chunks;
}

void NodeOperations::all_gather(const Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  const Place in = buffers_.find(operation.in, bytes);
  const bool large = bytes * std::size_t(ranks_) * std::size_t(ranks_) >= kStreamingBytes;
  std::size_t chunk = segment_.stage_bytes();
  auto length = [&](std::size_t c) { return std::min(chunk, bytes - c * chunk); };
  auto copy_in = [&](std::size_t c) {
    if (in.buffer != 0) return;
    copy(segment_.stage(self_, tick(c)), bytes_at(operation.in, c * chunk), length(c));
  };
  auto copy_out = [&](std::size_t c) {
    for (int i = 0; i < ranks_; ++i) {
      const int r = (self_ + i) % ranks_;
      const char* from;
      if (r == self_) {
        from = bytes_at(operation.in, c * chunk);
      } else {
        waiting_.for_one(&RankSlot::in, r, tick(c), deadline_);
        from =
            arrival_.in()[r] != nullptr ? arrival_.in()[r] + c * chunk : segment_.stage(r, tick(c));
      }
      copy(bytes_at(operation.out, std::size_t(r) * bytes + c * chunk), from, length(c), large);
    }
  };
  copy_in(0);
  meet(operation, in, {});
  if (arrival_.all_in_shared()) chunk = bytes;
  const std::size_t chunks = chunks_of(bytes, chunk);
  for (std::size_t turn = 0; turn <= chunks; ++turn) {
    if (turn > 0 && turn < chunks) {
      if (turn >= segment_.stages()) await_reduced(turn - segment_.stages());
      copy_in(turn);
      publish_in(turn);
    }
    if (turn >= 1) {
      copy_out(turn - 1);
      publish_reduced(turn - 1);
    }
  }
  await_reduced(chunks - 1);
  base_ += chunks;
}

void NodeOperations::reduce_scatter(const Operation& operation) {
  const std::size_t size = size_of(operation.type);
  const std::size_t count = operation.count;
  const Place in = buffers_.find(operation.in, count * size * std::size_t(ranks_));
  std::size_t chunk = segment_.stage_bytes() / size / std::size_t(ranks_);  // of each rank's part
  auto length = [&](std::size_t c) { return std::min(chunk, count - c * chunk); };
  auto copy_in = [&](std::size_t c) {
    if (in.buffer != 0) return;
    for (int r = 0; r < ranks_; ++r) {
      if (r == self_) continue;
      copy(segment_.stage(self_, tick(c)) + std::size_t(r) * chunk * size,
           bytes_at(operation.in, (std::size_t(r) * count + c * chunk) * size), length(c) * size);
    }
  };
  auto reduce_own_part = [&](std::size_t c) {
    const std::size_t offset = (std::size_t(self_) * count + c * chunk) * size;
    inputs_.clear();
    for (int r = 0; r < ranks_; ++r) {
      if (r == self_) {
        inputs_.push_back(bytes_at(operation.in, offset));
      } else if (arrival_.in()[r] != nullptr) {
        inputs_.push_back(arrival_.in()[r] + offset);
      } else {
        inputs_.push_back(segment_.stage(r, tick(c)) + std::size_t(self_) * chunk * size);
      }
    }
    void* output = bytes_at(operation.out, c * chunk * size);
    reduce({operation.type, operation.op, inputs_.data(), arrival_.scales().data(), ranks_, &output,
            1, length(c), operation.op == ReduceOp::avg ? ranks_ : 1});
  };
  copy_in(0);
  meet(operation, in, {});
  if (arrival_.all_in_shared()) chunk = count;
  const std::size_t chunks = chunks_of(count, chunk);
  for (std::size_t turn = 0; turn <= chunks; ++turn) {
    if (turn > 0 && turn < chunks) {
      if (turn >= segment_.stages()) await_reduced(turn - segment_.stages());
      copy_in(turn);
      publish_in(turn);
    }
    if (turn >= 1) {
      waiting_.for_all(&RankSlot::in, tick(turn - 1), deadline_);
      reduce_own_part(turn - 1);
      publish_reduced(turn - 1);
    }
  }
  await_reduced(chunks - 1);
  base_ += chunks;
}

}  // namespace af::local
