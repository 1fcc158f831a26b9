// SPDX-License-Identifier: Apache-2.0
// The local backend: shared memory inside a node, TCP between nodes.
#include <unistd.h>

#include <optional>

#include "collectives/host_backend.h"
#include "collectives/local/flat_operations.h"
#include "collectives/local/fork_guard.h"
#include "collectives/local/identity.h"
#include "collectives/local/node_operations.h"
#include "collectives/local/rendezvous.h"
#include "collectives/local/watcher.h"
#include "collectives/local/wide_operations.h"
#include "collectives/reduce.h"

namespace af {
namespace {

using namespace std::chrono_literals;

// A world of one: only the arithmetic.
class AloneBackend : public HostBackend {
 public:
  explicit AloneBackend(const Options& options) : HostBackend(options) {}
  ~AloneBackend() override { stop(); }
  BackendKind kind() const override { return BackendKind::local; }
  std::string description() const override { return "local, a world of one"; }

 private:
  void run(const Operation& operation) override {
    if (operation.kind == OperationKind::barrier) return;
    reduce({operation.type, operation.op, &operation.in, &operation.pre_scale, 1, &operation.out, 1,
            operation.count, 1});
  }
  void interrupt(const std::string&) noexcept override {}
};

class LocalBackend : public HostBackend {
 public:
  explicit LocalBackend(const Options& options)
      : HostBackend(options),
        members_(local::meet(options)),
        alarm_(options.rank, options.world_size),
        buffers_(int(node().size()), members_.topology.index_of[options.rank]),
        waiting_(members_.topology, options.rank, members_.segment, alarm_),
        inquiry_(options.rank, members_.links, waiting_),
        exchange_(members_.links, alarm_, waiting_, inquiry_) {
    waiting_.set_timeout_text(options.timeout);
    std::vector<int> control_fds;
    for (const local::Link& link : members_.links) control_fds.push_back(link.control.get());
    alarm_.connect(&members_.segment, control_fds);
    std::vector<int> lifelines = control_fds;
    for (const local::Link& link : members_.links) lifelines.push_back(link.data.get());
    fork_guard_.emplace(lifelines);
    watcher_.emplace(members_.links, options.rank, alarm_, inquiry_, options_.cancel.get());
    const local::Topology& topology = members_.topology;
    if (topology.nodes.size() == 1) {
      node_.emplace(topology, options.rank, members_.segment, waiting_, buffers_);
    } else if (topology.nodes.size() == std::size_t(options.world_size)) {
      flat_.emplace(topology, options.rank, exchange_, options.generation);
    } else {
      wide_.emplace(topology, options.rank, members_.segment, waiting_, buffers_, exchange_,
                    options.generation);
    }
    execute(Operation{});
    // All have come: nobody needs the store any more, and rank 0 may be serving it.
    options_.store.reset();
  }

  ~LocalBackend() override {
    const bool broken = alarm_.failed();
    alarm_.close();
    stop();
    // Device memory has no buffers here but those of its staging, which go.
    if (broken && options_.device < 0) buffers_.make_private();
  }

  BackendKind kind() const override { return BackendKind::local; }

  std::string description() const override {
    std::string text = "local, " + members_.topology.description() + ": ";
    if (node_) return text + "shared memory";
    return text + (flat_ ? "TCP" : "shared memory and TCP");
  }

 private:
  const std::vector<int>& node() const {
    return members_.topology.nodes[members_.topology.node_of[options_.rank]];
  }

  void run(const Operation& operation) override { execute(operation); }

  void execute(const Operation& operation) {
    guarded([&] { return to_string(operation); },
            [&] {
              const local::Deadline deadline = local::deadline_after(options_.timeout);
              if (node_) {
                node_->run(operation, deadline);
              } else if (flat_) {
                flat_->run(operation, deadline);
              } else {
                wide_->run(operation, deadline);
              }
            });
    ++operations_;
  }

  std::shared_ptr<Memory> do_allocate(std::size_t bytes) override {
    if (node().size() == 1) return HostBackend::do_allocate(bytes);
    std::shared_ptr<Memory> memory;
    guarded([&] { return "allocate(" + std::to_string(bytes) + ")"; },
            [&] {
              const local::Deadline deadline = local::deadline_after(options_.timeout);
              memory = buffers_.allocate(bytes, members_.links, members_.topology.index_of, alarm_,
                                         deadline.arrival);
            });
    return memory;
  }

  void interrupt(const std::string& reason) noexcept override {
    alarm_.raise(CommunicatorError(CommunicatorError::Kind::aborted, reason, {options_.rank}));
  }

  // Says in every failure what() failed where, and tells the other ranks.
  template <typename What, typename Body>
  void guarded(const What& what, Body body) {
    try {
      alarm_.check();
      body();
    } catch (const CommunicatorError& error) {
      std::string ranks;
      for (int rank : error.ranks()) {
        if (rank != options_.rank) ranks += (ranks.empty() ? "" : "; ") + place_of(rank);
      }
      const CommunicatorError full(
          error.kind(),
          what() + " #" + std::to_string(operations_) + " of world \"" + options_.name +
              "\", generation " + std::to_string(options_.generation) + ", on rank " +
              std::to_string(options_.rank) + " (" + members_.places[options_.rank] +
              "): " + error.what() + (ranks.empty() ? "" : " [" + ranks + "]"),
          error.ranks());
      alarm_.raise(full);
      throw full;
    }
  }

  std::string place_of(int rank) const {
    if (rank < 0 || rank >= options_.world_size) return "?";
    return "rank " + std::to_string(rank) + ": " + members_.places[rank];
  }

  local::Membership members_;
  local::Alarm alarm_;
  local::SharedBuffers buffers_;
  local::Waiting waiting_;
  local::Inquiry inquiry_;
  local::Exchange exchange_;
  std::optional<local::ForkGuard> fork_guard_;
  std::optional<local::Watcher> watcher_;  // joined before what it watches goes
  std::optional<local::NodeOperations> node_;
  std::optional<local::FlatOperations> flat_;
  std::optional<local::WideOperations> wide_;
  std::uint64_t operations_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_local_backend(const Options& options) {
  if (options.world_size == 1) return std::make_unique<AloneBackend>(options);
  if (options.store == nullptr) {
    throw CommunicatorError(CommunicatorError::Kind::invalid_argument,
                            "a world of " + std::to_string(options.world_size) +
                                " needs a store to meet in (Options::store)");
  }
  return std::make_unique<LocalBackend>(options);
}

}  // namespace af
