// SPDX-License-Identifier: Apache-2.0
// The variables that an af job's batch script and steps get: decided here, set by step.cc. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/paths.h"

namespace af::spank {

enum class StepKind { kBatch, kInteractive, kExtern, kRegular };

// What a step knows of its job; plain data.
struct StepFacts {
  uint32_t job_id = 0;
  std::optional<uint32_t> array_job_id;
  std::optional<uint32_t> array_task_id;
  uint32_t restarts = 0;
  StepKind kind = StepKind::kRegular;
  std::map<std::string, std::string> environment;  // as the job would get it
};

// A change of one variable: set, or unset where there is no value.
using VariableChange = std::pair<std::string, std::optional<std::string>>;

// The same over requeues, another for each task of an array: "17", "12_3".
std::string run_id(const StepFacts& step);
// Whether the job was submitted with af's options.
bool is_af_job(const StepFacts& step);
// Whether it is a worker of another job's run.
bool is_satellite(const StepFacts& step);
// What to change in the environment of an af job's step. Pure but for `files`.
std::vector<VariableChange> environment_changes(const StepFacts& step, const FileView& files);

}  // namespace af::spank
