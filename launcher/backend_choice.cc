// SPDX-License-Identifier: Apache-2.0
#include "launcher/backend_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

namespace af {
namespace {

constexpr std::array<int, 2> kNcclWithFlag = {2, 30};
constexpr int kDriverForMig = 580;  // the first driver branch of CUDA 13.0

std::array<int, 2> version_of(const std::string& text) {
  std::array<int, 2> version = {0, 0};
  std::sscanf(text.c_str(), "%d.%d", &version[0], &version[1]);
  return version;
}

struct Inventory {
  size_t with_gpu = 0;
  int most_on_a_card = 0;
  std::string crowded_card;  // "MIG instances of one card on n3"
  bool crowded_are_mig = true;
  int oldest_driver = 0;  // 0: unknown
  std::set<std::string> nccl;
};

// A card's name is unique in the cluster by its UUID, but fake and missing UUIDs are not: the host
// belongs to the key. A MIG instance that does not know its card may share it with any other.
std::string card_of(const std::string& host, const Gpu& gpu) {
  if (!gpu.parent_uuid.empty()) return host + "/" + gpu.parent_uuid;
  if (gpu.mig) return host + "/unknown card";
  if (!gpu.uuid.empty()) return host + "/" + gpu.uuid;
  return fmt::format("{}/{}", host, gpu.index);
}

Inventory take_inventory(const std::vector<Worker>& workers, const std::vector<RankPlan>& ranks) {
  Inventory inventory;
  std::map<std::string, int> load;
  bool driver_unknown = false;
  for (const RankPlan& rank : ranks) {
    if (!rank.gpus.empty()) ++inventory.with_gpu;
    std::set<std::string> cards;  // of this rank: two GPUs of one rank are two cards
    for (const Gpu& gpu : rank.gpus) {
      cards.insert(card_of(rank.host, gpu));
      const int driver = version_of(gpu.driver)[0];
      driver_unknown |= driver == 0;
      if (inventory.oldest_driver == 0 || driver < inventory.oldest_driver)
        inventory.oldest_driver = driver;
    }
    for (const std::string& card : cards) {
      const int now = ++load[card];
      if (now < 2) continue;
      for (const Gpu& gpu : rank.gpus) inventory.crowded_are_mig &= gpu.mig;
      if (now > inventory.most_on_a_card) inventory.crowded_card = rank.host;
    }
    for (const std::string& card : cards)
      inventory.most_on_a_card = std::max(inventory.most_on_a_card, load[card]);
  }
  if (driver_unknown) inventory.oldest_driver = 0;
  for (const Worker& worker : workers) inventory.nccl.insert(worker.nccl_version);
  return inventory;
}

std::string host_staged(const PlanOptions& options) {
  return options.program == ProgramKind::kTorch ? "gloo" : "local";
}

BackendChoice decide(const Inventory& inventory, size_t ranks, const PlanOptions& options) {
  BackendChoice choice{.backend = host_staged(options)};
  if (inventory.with_gpu == 0) {
    choice.reason = "the workers have no GPU";
    return choice;
  }
  if (inventory.with_gpu < ranks) {
    choice.reason = fmt::format("{} of {} workers have no GPU", ranks - inventory.with_gpu, ranks);
    choice.warnings.push_back(choice.reason);
    return choice;
  }
  // A PyTorch program brings the NCCL that is inside its torch, whatever is found on the node.
  const bool known = !inventory.nccl.contains("");
  if (!known && options.program == ProgramKind::kAf) {
    choice.reason = "there is no NCCL library on every node";
    return choice;
  }
  if (known && inventory.nccl.size() > 1) {
    choice.reason =
        fmt::format("the nodes have different NCCL versions ({})", fmt::join(inventory.nccl, ", "));
    return choice;
  }
  if (inventory.most_on_a_card <= 1) {
    choice.backend = "nccl";
    choice.reason = ranks == 1 ? "one rank" : "every card carries one rank";
    return choice;
  }
  if (!inventory.crowded_are_mig) {
    choice.reason = fmt::format("{} ranks share one GPU on {}, which NCCL refuses",
                                inventory.most_on_a_card, inventory.crowded_card);
    return choice;
  }
  const std::string crowd = fmt::format("{} ranks have MIG instances of one card on {}",
                                        inventory.most_on_a_card, inventory.crowded_card);
  const std::string nccl = known ? *inventory.nccl.begin() : "";
  if (nccl.empty() || version_of(nccl) < kNcclWithFlag) {
    choice.reason = fmt::format("{}, which NCCL before 2.30 refuses (here: {})", crowd,
                                nccl.empty() ? "unknown" : nccl);
    return choice;
  }
  if (inventory.oldest_driver < kDriverForMig) {
    choice.reason = fmt::format(
        "{}, for which NCCL needs driver {} (here: {})", crowd, kDriverForMig,
        inventory.oldest_driver == 0 ? "unknown" : std::to_string(inventory.oldest_driver));
    return choice;
  }
  choice.backend = "nccl";
  choice.reason =
      fmt::format("{}, which NCCL {} with driver {} takes", crowd, nccl, inventory.oldest_driver);
  // The documentation of 2.31 says the flag is not needed; users found that it is (nccl#1716).
  choice.environment = {
      {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"}, {"NCCL_NVLS_ENABLE", "0"}};
  return choice;
}

}  // namespace

BackendChoice choose_backend(const std::vector<Worker>& workers, const std::vector<RankPlan>& ranks,
                             const PlanOptions& options) {
  BackendChoice choice = decide(take_inventory(workers, ranks), ranks.size(), options);
  if (options.backend.empty() || options.backend == choice.backend) return choice;
  BackendChoice asked{.backend = options.backend,
                      .reason = "asked for with --backend",
                      .environment = {},
                      .warnings = choice.warnings};
  if (asked.backend == "nccl")
    asked.warnings.push_back(fmt::format("NCCL will probably fail: {}", choice.reason));
  return asked;
}

}  // namespace af
