// SPDX-License-Identifier: Apache-2.0
// Which GPU classes can serve a worker, and how Slurm is asked for exactly those. Slurm has no "or"
// between GRES types, so there are three spellings:
//   all classes of the partition qualify     gpus-per-task=K            whichever is free
//   one class, typed GRES                    gpus-per-task=TYPE:K
//   classes with node features               gpus-per-task=K and constraint=F1|F2
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/settings.h"
#include "common/site.h"

namespace af {

struct GpuChoice {
  std::vector<const GpuClass*> classes;  // pointers into the site
  std::string type;                      // GRES type to ask for; "" = untyped
  std::string constraint;                // "t4|a100"; "" = none
  std::string note;                      // why, where it is not plain; may be ""
};

// Of the classes in `partitions` (empty: all of the site). Throws Error in words if none qualifies
// or they have fewer GPUs than the workers need.
GpuChoice choose_gpus(const Settings& settings, const Site& site,
                      const std::vector<std::string>& partitions);

// Throws Error in words if the classes in `partitions` have fewer GPUs than the workers need.
void check_capacity(const Settings& settings, const Site& site,
                    const std::vector<std::string>& partitions);

// Whether workers of `gpus_per_worker` can run on the class at all: a CUDA process sees one MIG
// instance only (case B09), so two of them make no worker.
bool can_serve(const GpuClass& gpu, std::optional<int> min_memory_gb, int gpus_per_worker);

}  // namespace af
