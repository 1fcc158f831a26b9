// SPDX-License-Identifier: Apache-2.0
// What a DataParallel holds and does, behind its public class: its state (data_parallel_state.cc),
// the way from one world to the next (data_parallel_world.cc), the calls that all ranks make
// (data_parallel.cc).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "af/train/data_parallel.h"
#include "train/parallel/gradient_reducer.h"
#include "train/parallel/replica_checkpoint.h"

namespace af::train {

// How far a rank has come. One that is in the training counts before one that has just come.
struct Progress {
  bool joined = false;
  int64_t steps = 0;
  int64_t calls = 0;  // since that step, of those that all ranks make
  auto order() const { return std::tie(joined, steps, calls); }
};

// Whether another world may do what this one could not.
bool is_of_the_world(const CommunicatorError& error);

GradientReducer::Options reducer_options(const DataParallelOptions& options);

struct DataParallel::Impl {
  enum class Scope { to_save, to_send };
  struct Kept {
    std::string name;
    bool of_program;  // changed by the program itself between its calls
    std::function<c10::IValue(Scope)> get;
    std::function<void(const c10::IValue&)> set;
  };

  Impl(torch::nn::Module& the_model, Communicator* communicator, World* the_world,
       DataParallelOptions the_options)
      : model(the_model),
        fixed(communicator),
        world(the_world),
        options(std::move(the_options)),
        reducer(model, reducer_options(options)),
        watch(std::make_shared<WorldWatch>(world)) {
    const auto parameters = model.parameters();
    if (!parameters.empty()) device = parameters.front().device();
  }

  torch::nn::Module& model;
  Communicator* fixed;  // one of these two
  World* world;
  DataParallelOptions options;
  at::Device device = at::kCPU;
  GradientReducer reducer;
  std::vector<Kept> kept;
  DataOrder* dealer = nullptr;
  BackgroundSaver* saver = nullptr;
  ReplicaCheckpoint replica_checkpoint;
  std::shared_ptr<WorldWatch> watch;
  bool saver_ready = false;  // it has memory for this rank's share in this world

  bool started = false;             // callbacks know of the training
  int64_t computing_since = 0;      // trace_now(); 0: not traced
  int64_t epoch_told = -1;          // likewise of the end of this epoch
  std::optional<int64_t> dealt;     // rows of this step
  std::optional<int64_t> expected;  // samples of this step, if known before backward
  int no_sync = 0;                  // guards that live

  bool joined = false;
  int64_t steps = 0;
  bool in_step = false;  // within step()
  StepResult last;       // of the last step
  // What the calls for all ranks since that step have given, and how many of them the program has
  // made: a rank that has come meanwhile makes them too, and finds the result.
  std::vector<std::vector<double>> results;
  std::size_t called = 0;
  bool change_agreed = false;
  bool save_agreed = false;

  bool elastic() const { return world != nullptr && world->elastic(); }
  Communicator& communicator() { return fixed != nullptr ? *fixed : world->communicator(); }
  int rank() const { return fixed != nullptr ? fixed->rank() : world->view().rank; }
  void check_joined() const {
    if (!joined) throw Error("DataParallel: begin() comes before the first call for all ranks");
  }

  // Says to the reducer how much the coming gradients count, where that is known.
  void expect();

  // state
  State collect(Scope scope) const;
  void apply(const State& state, bool of_program);
  std::string kept_names() const;

  // collective
  std::vector<Progress> compare(Communicator& comm) const;
  void synchronize(Communicator& comm, const std::vector<Progress>& all);
  void form();
  void next_world();
  void enter();
  WorldFlags flags(bool at_checkpoint) const;
  void agree(bool change, bool save);
  void tell_start();
  StepResult tell_step(const StepResult& result);
  std::vector<double> sum(Communicator& comm, std::vector<double> values, WorldFlags own);
  std::vector<double> call(const std::function<std::vector<double>(Communicator&)>& run);
  StepResult step(int64_t samples, double loss,
                  const std::function<void(GradientBuckets&)>& update);
  void prepare_saver();
  void save_checkpoint();
  void save_and_leave();
  void leave();
  uint64_t seed() const { return dealer != nullptr ? dealer->seed() : 0; }
};

}  // namespace af::train
