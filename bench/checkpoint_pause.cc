// SPDX-License-Identifier: Apache-2.0
// How long a training stands still for a checkpoint: af's BackgroundSaver against writing the same
// state in place, as torch.save does (a zip archive of the tensors, without fsync). Both in this
// process, in turn, with one thread for computing. A training computes meanwhile in neither.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "af/train/background_saver.h"

namespace {

double seconds_of(const std::function<void()>& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double quantile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(at * static_cast<double>(values.size() - 1))];
}

// Parameters and Adam's two moments of them.
af::train::State make(int64_t parameters) {
  af::train::State state = af::train::make_state();
  for (const char* name : {"model", "exp_avg", "exp_avg_sq"})
    state.insert(name, at::rand({parameters}));
  return state;
}

void compare(const std::string& name, int64_t parameters, int pairs,
             const std::filesystem::path& directory) {
  const af::train::State state = make(parameters);
  af::train::BackgroundSaver saver(
      af::train::CheckpointDirectory(directory / std::to_string(parameters), 1));
  const auto file = directory / "state.pt";
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  double first = 0;
  for (int pair = 0; pair <= pairs; ++pair) {
    const double pause = seconds_of([&] { saver.save(pair, state); });
    saver.flush();
    const double write = seconds_of([&] { af::train::write_state(file, state); });
    if (pair == 0) {  // makes the buffers that are kept
      first = pause;
      continue;
    }
    ours.push_back(pause);
    theirs.push_back(write);
    ratios.push_back(write / pause);
  }
  const nlohmann::json line = {
      {"name", name},
      {"value", quantile(ours, 0.5) * 1e3},
      {"unit", "ms"},
      {"peer", "written in place, no fsync"},
      {"peer_value", quantile(theirs, 0.5) * 1e3},
      {"ratio", quantile(ratios, 0.5)},
      {"spread", fmt::format("quartiles {:.2f} to {:.2f} over {} pairs, the first pause {:.4g} ms",
                             quantile(ratios, 0.25), quantile(ratios, 0.75), pairs, first * 1e3)}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: checkpoint_pause DIRECTORY\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    compare("pause of a checkpoint, 38 k parameters and Adam", 38'000, 100, argv[1]);
    compare("pause of a checkpoint, 25 M parameters and Adam", 25'000'000, 9, argv[1]);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint_pause: {}\n", error.what());
    return 1;
  }
}
