// SPDX-License-Identifier: Apache-2.0
#include "perf/start.h"

#include <charconv>
#include <cstring>
#include <optional>

namespace af::perf {
namespace {

std::optional<int> number(const char* text) {
  int value = 0;
  if (!text) return std::nullopt;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0') return std::nullopt;
  return value;
}

}  // namespace

Options with_slurm_step(Options options, const Environment& environment) {
  // A batch script has SLURM_NTASKS as well, but only tasks of a step have a step's process id that
  // counts: the batch script's own is 0, and its step is called "batch" (SLURM_STEP_ID unset).
  const auto tasks = number(environment("SLURM_STEP_NUM_TASKS"));
  const auto rank = number(environment("SLURM_PROCID"));
  if (options.world_size > 1 || !tasks || !rank || *tasks <= 1) return options;
  options.world_size = *tasks;
  options.rank = *rank;
  if (options.backend == BackendKind::automatic && environment("PMIX_RANK")) {
    options.backend = BackendKind::mpi;
  }
  return options;
}

bool needs_store(const Options& options) {
  return options.world_size > 1 && !options.store && options.backend != BackendKind::mpi;
}

}  // namespace af::perf
