// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan_text.h"

#include <fmt/format.h>

namespace af {
namespace {

std::string count(size_t number, const std::string& thing) {
  return fmt::format("{} {}{}", number, thing, number == 1 ? "" : "s");
}

}  // namespace

std::string plan_sentence(const Plan& plan) {
  return fmt::format("{} on {}, backend {}: {}", count(plan.ranks.size(), "rank"),
                     count(plan.hosts.size(), "node"), plan.backend, plan.reason);
}

std::string plan_table(const Plan& plan) {
  std::string text = fmt::format("{:>4}  {:<12} {:>10}  {:<24} {}\n", "rank", "host", "local rank",
                                 "GPUs", "CUDA_VISIBLE_DEVICES");
  for (const RankPlan& rank : plan.ranks) {
    std::string gpus;
    for (const Gpu& gpu : rank.gpus)
      gpus += fmt::format("{}{} ({:g} GB)", gpus.empty() ? "" : " + ",
                          gpu.type.empty() ? "GPU" : gpu.type, gpu.memory_gb);
    text += fmt::format("{:>4}  {:<12} {:>10}  {:<24} {}\n", rank.rank, rank.host, rank.local_rank,
                        gpus.empty() ? "-" : gpus, rank.visible_devices.value_or("-"));
  }
  text += fmt::format("master {}:{}\nbackend {}: {}\n", plan.master_address, plan.master_port,
                      plan.backend, plan.reason);
  for (const auto& [name, value] : plan.backend_environment)
    text += fmt::format("with {}={}\n", name, value);
  return text;
}

}  // namespace af
