// SPDX-License-Identifier: Apache-2.0
// Trains a model of which every rank keeps only its share: 1/N of the parameters, of the gradients
// and of the optimizer's state. The parameters of a part of the model, a unit, are put together
// when it computes, and let go of afterwards. For models that do not fit otherwise.
//
//   struct GptImpl : torch::nn::Module {
//     at::Tensor forward(at::Tensor x) {
//       x = af::train::run_unit(*embedding, [&] { return embedding->forward(x); });
//       for (auto& block : blocks)
//         x = af::train::run_unit(*block, [&] { return block->forward(x); });
//       return af::train::run_unit(*head, [&] { return head->forward(x); });
//     }
//     …
//   };
//
//   af::train::FullyShardedOptions options;
//   options.units = {"embedding", "blocks.0", "blocks.1", "head"};   // or units_of<BlockImpl>(…)
//   af::train::FullyShardedDataParallel fsdp(*model, communicator, options);
//   af::train::FlatAdamW adam(fsdp.parameters(), …);                  // this rank's shards
//   for (…) {
//     const at::Tensor loss = fsdp.forward([&] { return loss_of(model->forward(x), y); });
//     fsdp.backward(loss, x.size(0));        // in place of loss.backward()
//     fsdp.clip_grad_norm(1.0);
//     adam.step();
//   }
//
// Without a wrapper, run_unit() only calls the function: the same model trains on one process, with
// DistributedDataParallel or sharded.
//
// Units
// - Submodules by their names (those of named_modules()), or of a type. Each should have a good
//   part of the model: a transformer's block, not a single norm. Parameters in no unit, and those
//   that two units share, belong to the root: they are whole from forward() to the end of
//   backward(). A unit within a unit keeps the outer one in memory meanwhile.
// - Every tensor that goes on from a unit is returned by the function given to run_unit(): a
//   tensor, or containers, pairs and tuples of tensors (output_tensors.h). What leaves by another
//   way is not seen, and backward would find the unit's parameters gone.
// - Between runs of their unit, parameters are empty tensors; for_each_parameter() shows them.
// - All ranks run the same units in the same order, a rank without rows too (on zero rows, or any).
//   The local backend ends the step with an error that names the rank if they do not.
//
// Gradients. After backward() each shard's grad() is the gradient of the mean loss over all samples
// of all ranks, also where ranks have different numbers of them; rows are weighed as in
// DataParallel. Parameters without a gradient count as zeros; shards of units that did not run have
// no grad(). No zero_grad() is needed: backward() begins anew.
//
// Memory on a rank, with P bytes of parameters of which a unit has at most U and the next largest
// V, N ranks, and Adam: 4P/N + U + V, the root's parameters, and the gradient of one parameter at a
// time while it is computed. Gradients are written over the unit's parameters, from where they are
// reduced. A model is whole on every rank while it is wrapped, in host memory if `device` is set.
//
// Algorithm: ZeRO stage 3 (Rajbhandari et al., arXiv:1910.02054), after PyTorch's
// FullyShardedDataParallel (Zhao et al., VLDB 2023): all-gather before forward and backward of a
// unit, the next one gathered meanwhile in the order of the pass before, at most two at once;
// reduce-scatter after backward. The last units of forward are still there when backward begins.
//
// Not supported: second derivatives (create_graph), sparse gradients, several devices on a rank, a
// world that changes (af::World in an elastic run: a lost rank is a CommunicatorError).
//
// Use from one thread. Collective calls are marked: all ranks make them in the same order.
// Errors: af::Error, naming ranks that differ; CommunicatorError, naming a rank that was lost.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "af/communicator.h"
#include "af/export.h"
#include "af/train/checkpoint.h"
#include "af/train/output_tensors.h"
#include "af/train/state_file.h"

namespace af::train {

class FsdpRuntime;  // internal

struct FullyShardedOptions {
  std::vector<std::string> units;
  // Units of fewer bytes are left in the root, up to 1 MiB of them: an operation of that size costs
  // more time than it saves memory.
  std::size_t smallest_unit_bytes = std::size_t{64} << 10;
  // Gather the next unit while one computes.
  bool prefetch = true;
  // Rank 0's buffers (batch norm's means) to all before each forward() of a model in training.
  bool broadcast_buffers = true;
  // Where shards and units live; by default where the model is.
  std::optional<at::Device> device;
  // How accumulate() keeps gradients: reduced at once into the shards, or whole, without
  // communication (PyTorch's no_sync), which takes as much memory as the parameters.
  enum class Accumulate { shards, whole };
  Accumulate accumulate = Accumulate::shards;
};

// The names of all submodules of a type: units_of<torch::nn::LinearImpl>(*model).
template <typename Module>
std::vector<std::string> units_of(const torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (item.value()->template as<Module>() != nullptr) names.push_back(item.key());
  return names;
}

class AF_PUBLIC FullyShardedDataParallel {
 public:
  // Collective. Checks that all ranks have the same units and parameters, and takes rank 0's
  // values. `model` and `world` must outlive this object; no parameter may be added afterwards, and
  // whether it needs a gradient must not change. Units may have parameters of several types, with
  // and without gradients.
  FullyShardedDataParallel(torch::nn::Module& model, Communicator& world,
                           FullyShardedOptions options);
  // The model's parameters stay empty.
  ~FullyShardedDataParallel();
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  FullyShardedDataParallel& operator=(const FullyShardedDataParallel&) = delete;

  // This rank's shards of all parameters with gradients, one tensor for each unit (and type), 1-d,
  // padded with zeros: for any optimizer that treats each element by itself (Adam, AdamW, SGD; not
  // LBFGS or those that need a parameter's shape).
  std::vector<at::Tensor> parameters() const;

  // Collective. Runs the model, or any part of it; units are known within. Returns what `function`
  // does.
  template <typename Function>
  auto forward(Function&& function) {
    Pass pass(*runtime_, nullptr);
    return pass.run(std::forward<Function>(function));
  }
  // Collective. Runs one unit, also outside of forward() if the root has no parameters.
  template <typename Function>
  auto run(const torch::nn::Module& unit, Function&& function) {
    Pass pass(*runtime_, &unit);
    return pass.run(std::forward<Function>(function));
  }

  struct Result {
    int64_t samples = 0;  // of all ranks, since the step began
    double loss = 0;      // mean over them; 0 if there are none
  };
  // Collective, in place of loss.backward(). `loss` is the mean over this rank's `samples`; with 0
  // samples its value and gradients do not matter. The step is complete with it.
  Result backward(const at::Tensor& loss, int64_t samples);
  // Collective (without communication of gradients for Accumulate::whole). Gradients of a part of
  // the step; the last part is backward()'s.
  Result accumulate(const at::Tensor& loss, int64_t samples);
  // Forgets what accumulate() has gathered, and takes the shards' gradients away.
  void zero_grad();

  // Collective. The 2-norm of all gradients, over all ranks; those that exceed `max_norm` are
  // scaled to it, as torch::nn::utils::clip_grad_norm_ does.
  double clip_grad_norm(double max_norm);

  // Collective. Every whole parameter in turn, on all ranks; the tensor is valid in the call only.
  // A shared one comes once.
  void for_each_parameter(
      const std::function<void(const std::string& name, const at::Tensor& whole)>& visit);

  // An optimizer over parameters() whose state is part of save() and load(). Adam, AdamW and SGD.
  // It must outlive this object.
  void keep(const std::string& name, torch::optim::Optimizer& optimizer);

  // Collective. Rank 0 writes the whole state, unit by unit, as state.pt of DataParallel and Python
  // have it: {"model": {…}, NAME: {PARAMETER: {"exp_avg": …}}, …}, and what is in `more` ("step",
  // say; rank 0's). Takes the memory of no more than the largest unit beside what there is. An
  // error of rank 0 is thrown on all ranks.
  void save(const std::filesystem::path& file, const State& more = make_state());
  // The same as a checkpoint (checkpoint.h) of rank 0's directory.
  void save(const CheckpointDirectory& directory, int64_t step, const State& more = make_state());
  // Collective. Each rank reads its shards from the file, whatever world wrote it, sharded or not.
  // Returns the file's plain values ("step"); its tensors are not read. Throws on all ranks, before
  // anything is changed, if a parameter is missing or has another shape or type on one of them.
  State load(const std::filesystem::path& file);

 private:
  friend class FsdpAccess;  // tests

  std::shared_ptr<FsdpRuntime> runtime_;

 public:
  // Internal: a unit between gathering and letting go.
  class AF_PUBLIC Pass {
   public:
    // `unit` null: the root.
    Pass(FsdpRuntime& runtime, const torch::nn::Module* unit);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    template <typename Function>
    auto run(Function&& function) {
      if constexpr (std::is_void_v<std::invoke_result_t<Function>>) {
        std::forward<Function>(function)();
        finish({});
      } else {
        auto result = std::forward<Function>(function)();
        std::vector<at::Tensor> outputs;
        collect_tensors(result, outputs);
        finish(outputs);
        return result;
      }
    }
    // The wrapper whose forward() runs on this thread, if it has such a unit.
    static FsdpRuntime* runtime_with(const torch::nn::Module& unit);

   private:
    void finish(const std::vector<at::Tensor>& outputs);

    FsdpRuntime& runtime_;
    int unit_;
    uint64_t first_operation_ = 0;
    bool finished_ = false;
  };
};

// Calls `function`, with the parameters of `unit` there if it is a unit of the sharded model whose
// forward() runs on this thread; else it just calls it. Returns what it returns.
template <typename Function>
auto run_unit(const torch::nn::Module& unit, Function&& function) {
  if (FsdpRuntime* runtime = FullyShardedDataParallel::Pass::runtime_with(unit)) {
    FullyShardedDataParallel::Pass pass(*runtime, &unit);
    return pass.run(std::forward<Function>(function));
  }
  return std::forward<Function>(function)();
}

// forward() of a torch::nn::Sequential whose children are units.
template <typename Sequential>
at::Tensor run_sequential(Sequential& parts, at::Tensor x) {
  for (auto& part : *parts)
    x = run_unit(*part.ptr(), [&] { return part.template forward<at::Tensor>(x); });
  return x;
}

}  // namespace af::train
