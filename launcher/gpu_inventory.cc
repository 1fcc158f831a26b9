// SPDX-License-Identifier: Apache-2.0
// The effect: which source answers, and what Slurm says. The decisions are in gpu_resolution.cc.
#include "launcher/gpu_inventory.h"

#include <cstdio>
#include <cstdlib>

#include "common/error.h"

namespace af {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// Digits and what job ids of arrays and heterogeneous jobs hold; it goes into a shell line.
bool is_job_id(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789_+") == std::string::npos;
}

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  ::pclose(pipe);
  return output;
}

}  // namespace

GpuResolution find_gpus() {
  SlurmGpuEnvironment environment;
  environment.in_slurm = variable("SLURM_JOB_ID").has_value();
  environment.cuda_visible_devices = variable("CUDA_VISIBLE_DEVICES");
  environment.slurm_step_gpus = variable("SLURM_STEP_GPUS");
  environment.slurm_job_gpus = variable("SLURM_JOB_GPUS");

  std::vector<Gpu> all;
  std::vector<std::string> warnings;
  std::unique_ptr<GpuSource> source = nvml_gpu_source();
  if (!source) source = fake_gpu_source();
  if (source) {
    try {
      all = source->all_gpus();
    } catch (const Error& error) {  // a broken driver on one node; the ranks may still know better
      warnings.push_back(error.what());
    }
  }

  const auto names_a_gpu = [](const std::optional<std::string>& value) {
    return value.has_value() && !value->empty();
  };
  const std::string job = variable("SLURM_JOB_ID").value_or("");
  // A job without GPUs sets none of the three either, but then there is a GPU to be mistaken about
  // only on a node that shows some.
  if (environment.in_slurm && !all.empty() && is_job_id(job) &&
      !names_a_gpu(environment.cuda_visible_devices) && !names_a_gpu(environment.slurm_step_gpus) &&
      !names_a_gpu(environment.slurm_job_gpus)) {
    const std::string node = variable("SLURMD_NODENAME").value_or("");
    environment.job_detail =
        job_detail_gpus(output_of("timeout 20 scontrol -d show job " + job + " 2>/dev/null"), node);
  }
  GpuResolution result = resolve_gpus(all, environment);
  result.warnings.insert(result.warnings.begin(), warnings.begin(), warnings.end());
  return result;
}

}  // namespace af
