// SPDX-License-Identifier: Apache-2.0
// The decision of the plugin: settings + site + what the person asked natively -> the Slurm
// request. Pure: nothing here asks Slurm. The SPANK plugin applies the result with
// slurm_option_set().
#pragma once

#include <string>
#include <vector>

#include "common/native_options.h"
#include "common/settings.h"
#include "common/site.h"

namespace af {

struct SlurmOption {
  std::string name;   // long option: "gpus-per-task"
  std::string value;  // "t4:1"
  bool operator==(const SlurmOption&) const = default;
};

struct Request {
  int workers = 1;                      // tasks of this job
  std::vector<SlurmOption> options;     // to set, in this order; what the person has is not here,
                                        // except "constraint", which combines theirs and ours
  std::vector<std::string> classes;     // names of the GPU classes that can serve it
  std::vector<std::string> partitions;  // where it would run; empty = Slurm's default
  std::vector<std::string> notes;       // for --af-explain: decisions in words
};

// Whether the site has a way to submit work that gives its GPUs back: without one, nobody joins the
// one worker that af-max-workers starts with.
bool has_spare_way(const Site& site);

// N workers with K GPUs each become ntasks=N, gpus-per-task=[type:]K, cpus-per-task, mem-per-gpu
// (memory of a worker / K) and the kept way to submit, where the person has not chosen another.
// With af-max-workers the job has one worker, the anchor (ntasks=1). A satellite has one too and is
// submitted the spare way, whose account, if the site has one, comes before the given one.
// Throws Error in words for what cannot be served or contradicts, and if the site is disabled.
Request build_request(const Settings& settings, const Site& site, const NativeOptions& native);

// One-line refusals that the effects need.
std::string heterogeneous_job_message();
std::string disabled_message(const Site& site);

}  // namespace af
