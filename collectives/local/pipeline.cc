// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/pipeline.h"

#include <algorithm>

namespace af::local {
std::vector<Message> wire_order(std::size_t contributions, std::size_t results, std::size_t lead) {
  std::vector<Message> order;
  order.reserve(contributions + results);
  for (std::size_t turn = 0; turn < std::max(contributions, results + lead); ++turn) {
    if (turn < contributions) order.push_back({false, turn});
    if (turn >= lead && turn - lead < results) order.push_back({true, turn - lead});
  }
  return order;
}

std::size_t lead_of(int nodes) {
  return std::max<std::size_t>(2, 8 / std::size_t(nodes - 1));
}

Pipeline::Pipeline(const std::vector<int>& peers, int self, Exchange& exchange)
    : peers_(peers), self_(self), exchange_(exchange) {}

Block Pipeline::part(int node, std::size_t segment) const {
  const std::size_t begin = segment * kSegmentBytes;
  return {begin, std::min(kSegmentBytes, job_.blocks[node].bytes - begin)};
}

std::size_t Pipeline::segments(int node) const {
  return (job_.blocks[node].bytes + kSegmentBytes - 1) / kSegmentBytes;
}

char* Pipeline::scratch(int node, std::size_t segment) {
  const std::size_t other = std::size_t(node < self_ ? node : node - 1);
  return scratch_.data() + (other * window_ + segment % window_) * kSegmentBytes;
}

void Pipeline::start(const Job& job) {
  job_ = job;
  reduced_ = 0;
  const std::size_t lead = lead_of(int(peers_.size()));
  window_ = lead + 2;
  arrived_.assign(window_, 0);
  scratch_.resize((peers_.size() - 1) * window_ * kSegmentBytes);
  lines_.clear();
  const bool gathers = job.results != nullptr;
  for (int node = 0; node < int(peers_.size()); ++node) {
    if (node == self_) continue;
    lines_.push_back({node,
                      {wire_order(segments(node), gathers ? segments(self_) : 0, lead)},
                      {wire_order(segments(self_), gathers ? segments(node) : 0, lead)}});
  }
  advance();
}

void Pipeline::advance() {
  for (Peer& peer : lines_) {
    receive_from(peer);
    send_to(peer);
  }
}

void Pipeline::send_to(Peer& peer) {
  for (; peer.out.next < peer.out.order.size(); ++peer.out.next) {
    const Message& message = peer.out.order[peer.out.next];
    if (message.is_result && message.segment >= reduced_) return;
    const int owner = message.is_result ? self_ : peer.node;
    const Block piece = part(owner, message.segment);
    const char* from =
        message.is_result ? job_.own : job_.in + job_.blocks[std::size_t(owner)].begin;
    exchange_.send(peers_[peer.node], from + piece.begin, piece.bytes);
  }
}

void Pipeline::receive_from(Peer& peer) {
  for (; peer.in.next < peer.in.order.size(); ++peer.in.next) {
    const Message& message = peer.in.order[peer.in.next];
    if (message.is_result) {
      const Block piece = part(peer.node, message.segment);
      char* block = job_.results + job_.blocks[std::size_t(peer.node)].begin;
      exchange_.receive(peers_[peer.node], block + piece.begin, piece.bytes);
    } else {
      if (message.segment >= reduced_ + window_) return;
      exchange_.receive(peers_[peer.node], scratch(peer.node, message.segment),
                        part(self_, message.segment).bytes, [this, s = message.segment] {
                          if (++arrived_[s % window_] == lines_.size()) combine(s);
                        });
    }
  }
}

// Segments complete in their order, since each connection delivers them so.
void Pipeline::combine(std::size_t segment) {
  arrived_[segment % window_] = 0;
  const Block piece = part(self_, segment);
  inputs_.clear();
  for (int node = 0; node < int(peers_.size()); ++node) {
    inputs_.push_back(node == self_ ? job_.in + job_.blocks[std::size_t(self_)].begin + piece.begin
                                    : scratch(node, segment));
  }
  void* output = job_.own + piece.begin;
  reduce({job_.type, job_.op, inputs_.data(), nullptr, int(inputs_.size()), &output, 1,
          piece.bytes / size_of(job_.type), job_.divisor});
  ++reduced_;
  advance();
}

}  // namespace af::local
