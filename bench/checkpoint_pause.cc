// SPDX-License-Identifier: Apache-2.0
// One rank of a training of 25 M parameters with Adam, for bench/checkpoint_pairs.py, which says
// what to do, a line at a time, and gets the seconds:
//   pause        a step, then how long checkpoint() takes; the disk is waited for behind that
//   train N S    N times S steps
//   save N S     the same with a checkpoint behind each of the N, until the last one is on the disk
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <sched.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "af/communicator.h"
#include "af/train/background_saver.h"
#include "af/train/data_parallel.h"

namespace {

constexpr int kTensors = 100;
constexpr int64_t kElements = 250'000;  // of each

double seconds_of(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void pin_to(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core % static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN))), &cores);
  ::sched_setaffinity(0, sizeof cores, &cores);
}

struct Model : torch::nn::Module {
  Model() {
    for (int i = 0; i < kTensors; ++i)
      all.push_back(register_parameter(fmt::format("weight{:03}", i), at::rand({kElements})));
  }
  std::vector<at::Tensor> all;
};

class Training {
 public:
  Training(af::Communicator& world, const std::string& directory)
      : world_(world),
        adam_(model_.parameters(), torch::optim::AdamOptions(1e-3)),
        saver_(af::train::CheckpointDirectory(directory, 1)),
        replicas_(model_, world) {
    replicas_.keep("optimizer", adam_);
    replicas_.save_with(saver_);
    step();
  }

  void step() {
    replicas_.zero_grad(1);
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& one : model_.all) loss = loss + one.sum();
    loss.backward();
    replicas_.step(1, loss, adam_);
  }

  double pause() {
    step();
    world_.barrier().synchronize();
    const double seconds = seconds_of([&] { replicas_.checkpoint(); });
    flush();
    return seconds;
  }

  double train(int intervals, int steps, bool save) {
    return seconds_of([&] {
      for (int i = 0; i < intervals; ++i) {
        for (int j = 0; j < steps; ++j) step();
        if (save) replicas_.checkpoint();
      }
      if (save) flush();
    });
  }

 private:
  // On the disk, and the share of every rank.
  void flush() {
    saver_.flush();
    world_.barrier().synchronize();
  }

  af::Communicator& world_;
  Model model_;
  torch::optim::Adam adam_;
  af::train::BackgroundSaver saver_;
  af::train::DataParallel replicas_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: checkpoint_pause DIRECTORY < COMMANDS\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    af::Communicator world = af::Communicator::from_environment();
    pin_to(world.rank());
    Training training(world, argv[1]);
    std::cout << "ready" << std::endl;
    std::string command;
    while (std::cin >> command) {
      int intervals = 0;
      int steps = 0;
      if (command != "pause") std::cin >> intervals >> steps;
      const double seconds = command == "pause"
                                 ? training.pause()
                                 : training.train(intervals, steps, command == "save");
      std::cout << fmt::format("{:.6f}", seconds) << std::endl;
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_pause: {}\n", error.what());
    return 1;
  }
}
