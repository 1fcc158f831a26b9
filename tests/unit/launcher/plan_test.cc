// SPDX-License-Identifier: Apache-2.0
// Tables of inventories and what the plan makes of them.
#include "launcher/plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/error.h"

namespace af {
namespace {

Gpu t4(const std::string& host, int index) {
  const std::string uuid = "GPU-" + host + "-" + std::to_string(index);
  return {.uuid = uuid,
          .parent_uuid = uuid,
          .type = "t4",
          .index = index,
          .memory_gb = 16,
          .driver = "535.183.01"};
}

// Instance `index` of a card, on a node.
Gpu mig(const std::string& host, int card, int index, const std::string& driver = "535.183.01") {
  return {.uuid = "MIG-" + host + "-" + std::to_string(card) + "-" + std::to_string(index),
          .parent_uuid = "GPU-" + host + "-" + std::to_string(card),
          .type = "1g.5gb",
          .index = card,
          .memory_gb = 5,
          .driver = driver,
          .mig = true};
}

// Workers of one node, all of which see the same GPUs, as with job-level GRES.
struct Node {
  std::string host;
  int workers;
  std::vector<Gpu> gpus;
};

std::vector<Worker> workers_of(const std::vector<Node>& nodes, const std::string& nccl = "2.18.3") {
  std::vector<Worker> workers;
  for (const Node& node : nodes)
    for (int i = 0; i < node.workers; ++i)
      workers.push_back({.task = static_cast<int>(workers.size()),
                         .host = node.host,
                         .address = "10.0.0." + std::to_string(workers.size() + 1),
                         .port = static_cast<uint16_t>(20000 + workers.size()),
                         .gpus = node.gpus,
                         .nccl_version = node.gpus.empty() ? "" : nccl,
                         .af_version = "1"});
  return workers;
}

struct Expected {
  std::string backend;
  std::vector<std::string> visible;  // "-": left as it is
  std::vector<int> local_ranks;
  std::string reason;  // a part of it
};

struct Case {
  std::string name;
  std::vector<Worker> workers;
  PlanOptions options;
  Expected expected;
};

constexpr auto kAf = ProgramKind::kAf;
constexpr auto kTorch = ProgramKind::kTorch;

const std::vector<Case>& cases() {
  static const std::vector<Case> table = {
      {"two nodes of two T4s",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}, {"n2", 2, {t4("n2", 0), t4("n2", 1)}}}),
       {kAf},
       {"nccl", {"0,1", "0,1", "0,1", "0,1"}, {0, 1, 0, 1}, "every card carries one rank"}},
      {"one GPU, one rank",
       workers_of({{"n1", 1, {t4("n1", 0)}}}),
       {kTorch},
       {"nccl", {"0"}, {0}, "one rank"}},
      {"GPUs whose numbers do not start at 0",
       workers_of({{"n1", 2, {t4("n1", 2), t4("n1", 5)}}}),
       {kTorch},
       {"nccl", {"2,5", "2,5"}, {0, 1}, "every card"}},
      {"no GPU, af's library",
       workers_of({{"n1", 2, {}}}),
       {kAf},
       {"local", {"-", "-"}, {0, 1}, "no GPU"}},
      {"no GPU, PyTorch",
       workers_of({{"n1", 2, {}}}),
       {kTorch},
       {"gloo", {"-", "-"}, {0, 1}, "no GPU"}},
      {"some workers without a GPU",
       workers_of({{"n1", 1, {t4("n1", 0)}}, {"n2", 1, {}}}),
       {kAf},
       {"local", {"0", "-"}, {0, 0}, "1 of 2 workers have no GPU"}},
      {"uneven nodes",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}, {"n2", 1, {t4("n2", 0)}}}),
       {kTorch},
       {"nccl", {"0,1", "0,1", "0"}, {0, 1, 0}, "every card"}},
      {"MIG instances of different cards",
       workers_of({{"n3", 2, {mig("n3", 0, 0), mig("n3", 1, 0)}}}),
       {kAf},
       {"nccl", {"MIG-n3-0-0", "MIG-n3-1-0"}, {0, 0}, "every card"}},
      {"MIG instances of one card, old NCCL",
       workers_of({{"n3", 2, {mig("n3", 0, 0), mig("n3", 0, 1)}}}),
       {kAf},
       {"local", {"MIG-n3-0-0", "MIG-n3-0-1"}, {0, 0}, "NCCL before 2.30 refuses (here: 2.18.3)"}},
      {"the same for a PyTorch program",
       workers_of({{"n3", 2, {mig("n3", 0, 0), mig("n3", 0, 1)}}}),
       {kTorch},
       {"gloo", {"MIG-n3-0-0", "MIG-n3-0-1"}, {0, 0}, "MIG instances of one card on n3"}},
      {"MIG instances of one card, NCCL and driver new enough",
       workers_of({{"n3", 2, {mig("n3", 0, 0, "580.65"), mig("n3", 0, 1, "580.65")}}}, "2.31.2"),
       {kAf},
       {"nccl", {"MIG-n3-0-0", "MIG-n3-0-1"}, {0, 0}, "NCCL 2.31.2 with driver 580 takes"}},
      {"NCCL 2.30 with its flag",
       workers_of({{"n3", 2, {mig("n3", 0, 0, "580.65"), mig("n3", 0, 1, "580.65")}}}, "2.30.7"),
       {kAf},
       {"nccl", {"MIG-n3-0-0", "MIG-n3-0-1"}, {0, 0}, "2.30.7"}},
      {"new NCCL, old driver",
       workers_of({{"n3", 2, {mig("n3", 0, 0), mig("n3", 0, 1)}}}, "2.31.2"),
       {kAf},
       {"local", {"MIG-n3-0-0", "MIG-n3-0-1"}, {0, 0}, "needs driver 580 (here: 535)"}},
      {"four instances on two cards, two each",
       workers_of(
           {{"n3", 4, {mig("n3", 0, 0), mig("n3", 0, 1), mig("n3", 1, 0), mig("n3", 1, 1)}}}),
       {kAf},
       {"local",
        {"MIG-n3-0-0", "MIG-n3-0-1", "MIG-n3-1-0", "MIG-n3-1-1"},
        {0, 0, 0, 0},
        "2 ranks have MIG instances of one card"}},
      {"mixed: T4s on one node, one MIG instance on another",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}, {"n3", 1, {mig("n3", 0, 0)}}}),
       {kAf},
       {"nccl", {"0,1", "0,1", "MIG-n3-0-0"}, {0, 1, 0}, "every card"}},
      {"mixed: T4s, and two instances of one card",
       workers_of(
           {{"n1", 2, {t4("n1", 0), t4("n1", 1)}}, {"n3", 2, {mig("n3", 0, 0), mig("n3", 0, 1)}}}),
       {kTorch},
       {"gloo", {"0,1", "0,1", "MIG-n3-0-0", "MIG-n3-0-1"}, {0, 1, 0, 0}, "one card on n3"}},
      {"a whole card and an instance on one node",
       workers_of({{"n1", 2, {t4("n1", 0), mig("n1", 1, 0)}}}),
       {kAf},
       {"nccl", {"0", "MIG-n1-1-0"}, {0, 0}, "every card"}},
      {"two GPUs for each worker",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1), t4("n1", 2), t4("n1", 3)}}}),
       {kAf, 2},
       {"nccl", {"0,1", "2,3"}, {0, 0}, "every card"}},
      {"what Slurm gave is divided when nobody says how many",
       workers_of({{"n1", 1, {t4("n1", 0), t4("n1", 1)}}}),
       {kTorch},
       {"nccl", {"0,1"}, {0}, "one rank"}},
      {"more workers than GPUs",
       workers_of({{"n1", 3, {t4("n1", 0), t4("n1", 1)}}}),
       {kTorch},
       {"gloo", {"0", "1", "0"}, {0, 0, 0}, "2 ranks share one GPU on n1"}},
      {"no NCCL for a program on af's library",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}}, ""),
       {kAf},
       {"local", {"0,1", "0,1"}, {0, 1}, "no NCCL library"}},
      {"a PyTorch program brings its own NCCL",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}}, ""),
       {kTorch},
       {"nccl", {"0,1", "0,1"}, {0, 1}, "every card"}},
      {"asked for",
       workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}}),
       {kAf, 0, "local"},
       {"local", {"0,1", "0,1"}, {0, 1}, "asked for"}},
  };
  return table;
}

class PlanTable : public testing::TestWithParam<size_t> {};

TEST_P(PlanTable, Holds) {
  const Case& row = cases()[GetParam()];
  SCOPED_TRACE(row.name);
  const Plan plan = make_plan(row.workers, row.options);
  EXPECT_EQ(plan.backend, row.expected.backend) << plan.reason;
  EXPECT_NE(plan.reason.find(row.expected.reason), std::string::npos) << plan.reason;
  ASSERT_EQ(plan.ranks.size(), row.expected.visible.size());
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    EXPECT_EQ(plan.ranks[rank].visible_devices.value_or("-"), row.expected.visible[rank]);
    EXPECT_EQ(plan.ranks[rank].local_rank, row.expected.local_ranks[rank]);
  }
  EXPECT_EQ(plan.master_address, row.workers[0].address);
  EXPECT_EQ(plan.master_port, row.workers[0].port);
}

INSTANTIATE_TEST_SUITE_P(All, PlanTable, testing::Range<size_t>(0, cases().size()));

TEST(Plan, GivesEachRankAnotherGpuThatItsLocalRankNames) {
  for (const Case& row : cases()) {
    SCOPED_TRACE(row.name);
    const Plan plan = make_plan(row.workers, row.options);
    for (const RankPlan& rank : plan.ranks) {
      if (!rank.visible_devices || rank.gpus.size() != 1) continue;
      // The idiom cuda.set_device(LOCAL_RANK) has to find the rank's own GPU (case B07).
      std::string list = *rank.visible_devices + ",";
      for (int skip = 0; skip < rank.local_rank; ++skip) list.erase(0, list.find(',') + 1);
      const Gpu& gpu = rank.gpus[0];
      EXPECT_EQ(list.substr(0, list.find(',')), gpu.mig ? gpu.uuid : std::to_string(gpu.index));
    }
  }
}

TEST(Plan, OrdersRanksByNodeAndThenByTask) {
  // Cyclic distribution: tasks 0, 2 on b and 1, 3 on a; and the answers come in any order.
  std::vector<Worker> workers;
  for (const int task : {3, 1, 0, 2})
    workers.push_back({.task = task, .host = task % 2 == 0 ? "b" : "a", .af_version = "1"});
  const Plan plan = make_plan(workers, {});
  std::vector<int> tasks, nodes, places;
  for (const RankPlan& rank : plan.ranks) {
    tasks.push_back(rank.task);
    nodes.push_back(rank.node_rank);
    places.push_back(rank.place_on_node);
    EXPECT_EQ(rank.local_world_size, 2);
  }
  EXPECT_EQ(tasks, (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(nodes, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(places, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(plan.hosts, (std::vector<std::string>{"b", "a"}));
}

TEST(Plan, RanksThatSeeOnlyTheirOwnGpuCallIt0) {
  auto workers = workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}});
  workers[0].gpus = {t4("n1", 0)};
  workers[1].gpus = {t4("n1", 1)};
  const Plan plan = make_plan(workers, {});
  EXPECT_EQ(plan.backend, "nccl");
  EXPECT_EQ(plan.ranks[1].visible_devices, "1");
  EXPECT_EQ(plan.ranks[1].local_rank, 0);
  EXPECT_EQ(plan.ranks[1].place_on_node, 1);
}

TEST(Plan, TellsNcclWhatSeveralRanksOnACardNeed) {
  const Plan plan = make_plan(
      workers_of({{"n3", 2, {mig("n3", 0, 0, "580.1"), mig("n3", 0, 1, "580.1")}}}, "2.31.2"), {});
  EXPECT_EQ(plan.backend_environment.at("NCCL_MULTI_RANK_GPU_ENABLE"), "1");
  EXPECT_EQ(plan.backend_environment.at("NCCL_NVLS_ENABLE"), "0");
}

TEST(Plan, DifferentNcclVersionsDoNotMeet) {
  auto workers = workers_of({{"n1", 1, {t4("n1", 0)}}, {"n2", 1, {t4("n2", 0)}}});
  workers[1].nccl_version = "2.19.3";
  const Plan plan = make_plan(workers, {});
  EXPECT_EQ(plan.backend, "local");
  EXPECT_NE(plan.reason.find("2.18.3, 2.19.3"), std::string::npos) << plan.reason;
}

TEST(Plan, CardsWithEqualNamesOnTwoNodesAreTwoCards) {
  auto workers = workers_of({{"n1", 1, {t4("x", 0)}}, {"n2", 1, {t4("x", 0)}}});
  EXPECT_EQ(make_plan(workers, {}).backend, "nccl");
}

TEST(Plan, WarnsOfWhatThePersonMayNotWant) {
  EXPECT_EQ(make_plan(workers_of({{"n1", 2, {t4("n1", 0), t4("n1", 1)}}}), {}).warnings.size(), 0u);
  EXPECT_EQ(make_plan(workers_of({{"n1", 2, {t4("n1", 0)}}}), {}).warnings.size(), 1u);
  const Plan forced = make_plan(workers_of({{"n1", 2, {}}}), {.program = kAf, .backend = "nccl"});
  EXPECT_EQ(forced.backend, "nccl");
  EXPECT_EQ(forced.warnings.size(), 1u);
}

std::string refusal(std::vector<Worker> workers, const PlanOptions& options = {}) {
  try {
    make_plan(std::move(workers), options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Plan, RefusesWhatCannotBeAWorld) {
  EXPECT_NE(refusal({}).find("no workers"), std::string::npos);
  auto workers = workers_of({{"n1", 3, {}}});
  workers[2].task = 1;
  EXPECT_NE(refusal(workers).find("task 1 is there twice"), std::string::npos);
  workers[2].task = 3;
  EXPECT_NE(refusal(workers).find("task 2 is missing"), std::string::npos);
  workers = workers_of({{"n1", 2, {}}});
  workers[1].af_version = "2";
  EXPECT_NE(refusal(workers).find("af 1 on n1 and af 2 on n1"), std::string::npos);
  workers = workers_of({{"n3", 1, {mig("n3", 0, 0), mig("n3", 1, 0)}}});
  EXPECT_NE(refusal(workers, {.gpus_per_worker = 2}).find("2 MIG instances"), std::string::npos);
}

}  // namespace
}  // namespace af
