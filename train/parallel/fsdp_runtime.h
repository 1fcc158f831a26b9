// SPDX-License-Identifier: Apache-2.0
// A sharded model at work: gathers units before they compute, lets go of them, reduces their
// gradients. What lies where is decided by fsdp_layout, fsdp_slots and fsdp_order.
//
// Order of collective operations. A gather is issued when a unit is needed, or ahead when the one
// before it is; a reduction when the last gradient that a unit's graph leads to has come, or at the
// end of backward. All of that follows from the order in which units run, and is the same on all
// ranks that run the same. The communicator executes operations in the order of issue, so a slot
// may be gathered into while its reduction is still to be done.
//
// Threads. Hooks run where autograd runs them: for host memory on the thread that called
// backward(), for a device on a thread of autograd's, while that one waits. Never two at once, as
// all tensors are on one device.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "af/communicator.h"
#include "af/train/fully_sharded_data_parallel.h"
#include "train/parallel/fsdp_order.h"
#include "train/parallel/fsdp_slots.h"
#include "train/parallel/fsdp_unit.h"
#include "train/parallel/gradient_hooks.h"

namespace torch::autograd {
struct Node;
}

namespace af::train {

class FsdpRuntime : public std::enable_shared_from_this<FsdpRuntime> {
 public:
  using Result = FullyShardedDataParallel::Result;

  // Collective; see FullyShardedDataParallel.
  FsdpRuntime(torch::nn::Module& model, Communicator& world, FullyShardedOptions options);
  ~FsdpRuntime();
  FsdpRuntime(const FsdpRuntime&) = delete;
  FsdpRuntime& operator=(const FsdpRuntime&) = delete;

  // Units are numbers; 0 is the root.
  static constexpr int kRoot = 0;
  int find(const torch::nn::Module& unit) const;  // -1: none
  std::vector<FsdpUnit>& units() { return units_; }

  void begin_run(int unit);
  // `first` as of next_operation() before the run.
  void end_run(int unit, const std::vector<at::Tensor>& outputs, uint64_t first);
  void abandon_run(int unit) noexcept;

  enum class Part { more_to_come, last };
  Result backward(const at::Tensor& loss, int64_t samples, Part part);
  void zero_grad();
  double clip_grad_norm(double max_norm);

  // Collective. The unit is whole until visit_end() or the next unit.
  void make_whole(int unit);
  // Puts a shard of this unit's group that is not its parameters (a moment) together into the
  // unit's memory, in place of them; the group's views show it. Collective.
  void gather_instead(int unit, std::size_t group, const at::Tensor& shard);
  void let_go(int unit);
  // All units are to be gathered anew: the shards have changed.
  void forget_whole_units();

  void broadcast_buffers();

  torch::nn::Module& model() { return model_; }
  Communicator& world() { return world_; }
  at::Device device() const { return device_; }
  std::map<std::string, torch::optim::Optimizer*>& kept() { return kept_; }

 private:
  friend class FsdpAccess;  // tests

  struct SlotState {
    Buffer memory;
    std::vector<Work> gathers;
  };
  struct Reduction {
    int unit = 0;
    std::size_t group = 0;
    int slot = 0;          // -1: the root's memory
    char* part = nullptr;  // this rank's part of the slot, if it is to be added up
    double before = 0;     // samples of the gradient that it is to be added to
    Work work;
  };

  // building (fsdp_build.cc)
  void find_units();
  std::vector<UnitParameter> find_parameters(std::vector<int>& unit_of_parameter);
  void leave_small_units(const std::vector<UnitParameter>& parameters,
                         std::vector<int>& unit_of_parameter);
  void make_units(std::vector<UnitParameter> parameters, const std::vector<int>& unit_of_parameter);
  void require_same_model() const;
  void shard(int unit);
  void add_hooks(int unit);

  // forward, and gathering (fsdp_runtime.cc)
  void expect_backward(int unit, const std::vector<at::Tensor>& outputs, uint64_t first);
  void leave_run(int unit);
  void prepare(const UnitSlots::Place& place);
  void gather(int unit, const UnitSlots::Place& place, bool ahead);
  std::vector<Work> issue_gathers(int unit, char* memory, bool ahead);
  void gather_ahead(int unit);
  void gather_root();
  bool is_stale(int unit) const;
  CallOptions call_options() const;

  // backward (fsdp_backward.cc)
  void before_backward(int unit);
  void on_gradient(std::size_t index);
  void reduce(int unit);
  void reduce_incomplete(int unit);
  void prepare_empty(int unit);
  void settle(Reduction& reduction);
  void settle_slot(int slot);
  void begin_step_part(const at::Tensor& loss, int64_t samples);
  void end_backward();
  void leave_backward();
  void forget_reductions() noexcept;
  FsdpUnit& unit_at(int unit) { return units_[static_cast<std::size_t>(unit)]; }

  torch::nn::Module& model_;
  Communicator& world_;
  const FullyShardedOptions options_;
  at::Device device_ = at::kCPU;
  std::vector<FsdpUnit> units_;
  std::unordered_map<const torch::nn::Module*, int> unit_of_;
  std::map<std::string, torch::optim::Optimizer*> kept_;
  std::vector<at::Tensor> buffers_of_model_;

  Buffer shards_;
  Buffer root_memory_;
  bool root_whole_ = false;
  UnitSlots slots_{std::vector<std::size_t>()};
  std::vector<SlotState> slot_states_;
  std::vector<std::vector<int64_t>> gathered_versions_;  // of the shards, by unit

  UnitOrder training_order_;
  UnitOrder evaluation_order_;
  std::vector<int> running_;  // units whose forward runs, outermost first
  int roots_running_ = 0;

  struct HookedParameter {
    int unit = 0;
    std::size_t group = 0;
    std::size_t parameter = 0;
  };
  std::vector<HookedParameter> hooked_;
  std::unordered_map<const torch::autograd::Node*, std::size_t> hooked_of_;

  // A step, from the first part's backward to the last's.
  double samples_ = 0;  // of all ranks so far
  double loss_sum_ = 0;
  bool step_begun_ = false;
  bool sums_kept_ = false;  // gradients are kept whole, times their samples
  // A backward.
  bool in_backward_ = false;
  Part part_ = Part::last;
  int64_t own_samples_ = 0;
  double weight_ = 0;  // of this rank's gradients
  int current_ = -1;   // the unit whose backward runs
  std::vector<Reduction> reductions_;

  GradientHooks hooks_;  // last: they use the rest
};

}  // namespace af::train
