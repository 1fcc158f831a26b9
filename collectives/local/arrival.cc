// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/arrival.h"

#include <string>

#include "collectives/local/futex.h"
#include "collectives/local/signature.h"

namespace af::local {

Arrival::Arrival(const Topology& topology, int rank, const Segment& segment, Waiting& waiting,
                 const SharedBuffers& buffers)
    : mates_(topology.nodes[topology.node_of[rank]]),
      index_(topology.index_of[rank]),
      segment_(segment),
      waiting_(waiting),
      buffers_(buffers),
      in_(mates_.size()),
      out_(mates_.size()),
      scales_(mates_.size()) {}

void Arrival::announce(const Operation& operation, std::uint64_t index, std::uint64_t tick,
                       const Place& in, const Place& out) {
  RankSlot& slot = segment_.slot(index_);
  // Two places suffice: a rank that still reads the one of operation index - 2 has not come to
  // index - 1, and this rank has left index - 1.
  Call& call = slot.calls[index % 2];
  call.index = index;
  call.count = operation.count;
  call.signature = signature_of(operation);
  call.in_buffer = in.buffer;
  call.in_offset = in.offset;
  call.out_buffer = out.buffer;
  call.out_offset = out.offset;
  call.pre_scale = operation.pre_scale;
  publish(slot.in, tick);
}

void Arrival::gather(const Operation& operation, std::uint64_t index, std::uint64_t tick,
                     Clock::time_point deadline, int world_size) {
  waiting_.for_all(&RankSlot::in, tick, deadline);
  const std::uint32_t signature = signature_of(operation);
  all_in_ = all_out_ = true;
  for (std::size_t i = 0; i < mates_.size(); ++i) {
    const Call& call = segment_.slot(int(i)).calls[index % 2];
    if (call.signature != signature || call.count != operation.count || call.index != index) {
      throw CommunicatorError(CommunicatorError::Kind::mismatch,
                              "rank " + std::to_string(mates_[i]) + " called " +
                                  describe_call(call.signature, call.count) +
                                  " while this rank called " + to_string(operation),
                              {mates_[i]});
    }
    scales_[i] = call.pre_scale;
    in_[i] = buffers_.resolve(int(i), {call.in_buffer, call.in_offset},
                              input_bytes(operation, world_size));
    out_[i] = buffers_.resolve(int(i), {call.out_buffer, call.out_offset},
                               output_bytes(operation, world_size));
    if ((call.in_buffer != 0 && in_[i] == nullptr) || (call.out_buffer != 0 && !out_[i])) {
      throw CommunicatorError(CommunicatorError::Kind::system,
                              "rank " + std::to_string(mates_[i]) +
                                  " uses a shared buffer that this rank does not know",
                              {mates_[i]});
    }
    all_in_ = all_in_ && in_[i] != nullptr;
    all_out_ = all_out_ && out_[i] != nullptr;
  }
}

}  // namespace af::local
