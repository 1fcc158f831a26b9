// SPDX-License-Identifier: Apache-2.0
// Which backend a world can use, from its ranks' GPUs, driver and NCCL; pure.
//
// NCCL takes one rank per card. Several MIG instances of one card count as one card twice: NCCL up
// to 2.29 refuses them ("Duplicate GPU detected", NVIDIA/nccl#431), 2.30 takes them with
// NCCL_MULTI_RANK_GPU_ENABLE=1, 2.31 documents them from CUDA 13 drivers (R580) on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/plan.h"

namespace af {

struct BackendChoice {
  std::string backend;
  std::string reason;  // a half sentence that fits after "backend nccl: "
  std::map<std::string, std::string> environment;
  std::vector<std::string> warnings;
};

BackendChoice choose_backend(const std::vector<Worker>& workers, const std::vector<RankPlan>& ranks,
                             const PlanOptions& options);

}  // namespace af
