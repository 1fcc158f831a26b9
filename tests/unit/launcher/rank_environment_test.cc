// SPDX-License-Identifier: Apache-2.0
#include "launcher/rank_environment.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace af {
namespace {

Plan plan_of(const std::vector<std::string>& hosts) {
  std::vector<Worker> workers;
  for (const std::string& host : hosts)
    workers.push_back({.task = static_cast<int>(workers.size()),
                       .host = host,
                       .address = "10.0.0.1",
                       .port = static_cast<uint16_t>(11000 + workers.size()),
                       .af_version = "1"});
  return make_plan(workers, {});
}

RunFacts facts() {
  return {.run_id = "77",
          .attempt = 2,
          .generation = 1,
          .run_directory = "/work/af-runs/77",
          .log_directory = "/work/af-runs/77/logs/attempt-2/gen-1",
          .interface = "eth0",
          .cpus_per_rank = 8,
          .shield_library = "/opt/af/lib/libaf_shield.so",
          .slurmstepd = 4242};
}

const Environment kJob = {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "9"}, {"PATH", "/bin"}};

TEST(MergedEnvironment, IsTheRunsButForWhatDescribesJobAndNode) {
  const Environment merged = merge_environment({{"SLURM_JOB_ID", "77"},
                                                {"SLURMD_NODENAME", "n1"},
                                                {"TMPDIR", "/tmp/77"},
                                                {"CUDA_VISIBLE_DEVICES", "0,1"},
                                                {"LD_PRELOAD", "/x/libjemalloc.so"},
                                                {"WANDB_MODE", "offline"},
                                                {"PATH", "/home/me/bin:/bin"}},
                                               {{"SLURM_JOB_ID", "80"},
                                                {"CUDA_VISIBLE_DEVICES", "3"},
                                                {"AF_SRUN_FRONT_PID", "5"},
                                                {"LD_PRELOAD", "/x/libaf_srun_shield.so"},
                                                {"PATH", "/bin"}});
  EXPECT_EQ(merged, Environment({{"SLURM_JOB_ID", "80"},
                                 {"CUDA_VISIBLE_DEVICES", "3"},
                                 {"AF_SRUN_FRONT_PID", "5"},
                                 {"LD_PRELOAD", "/x/libjemalloc.so"},
                                 {"WANDB_MODE", "offline"},
                                 {"PATH", "/home/me/bin:/bin"}}));
}

TEST(RankEnvironment, ThePythonClientIsFoundBehindThePersonsOwnPath) {
  const Plan plan = plan_of({"a"});
  RunFacts run = facts();
  const auto path = [&](const Environment& inherited) {
    const Environment env = rank_environment(inherited, plan, plan.ranks[0], run, "@sock");
    return value_or(env, "PYTHONPATH", "none");
  };
  EXPECT_EQ(path({}), "none");
  run.python_client = "/opt/af/python";
  EXPECT_EQ(path({}), "/opt/af/python");
  EXPECT_EQ(path({{"PYTHONPATH", ""}}), "/opt/af/python");
  EXPECT_EQ(path({{"PYTHONPATH", "/work/mine"}}), "/work/mine:/opt/af/python");
  EXPECT_EQ(path({{"PYTHONPATH", "/opt/af/python:/work/mine"}}), "/opt/af/python:/work/mine");
}

TEST(RankEnvironment, AllNamesAgree) {
  const Plan plan = plan_of({"a", "a", "b"});
  for (const RankPlan& rank : plan.ranks) {
    const Environment env = rank_environment(kJob, plan, rank, facts(), "@sock");
    const std::string number = std::to_string(rank.rank);
    for (const char* name : {"RANK", "ROLE_RANK", "SLURM_PROCID"}) EXPECT_EQ(env.at(name), number);
    for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS"})
      EXPECT_EQ(env.at(name), "3") << name;
    EXPECT_EQ(env.at("LOCAL_RANK"), env.at("SLURM_LOCALID"));
    EXPECT_EQ(env.at("GROUP_RANK"), env.at("SLURM_NODEID"));
    EXPECT_EQ(env.at("LOCAL_WORLD_SIZE"), rank.host == "a" ? "2" : "1");
    EXPECT_EQ(env.at("SLURM_NTASKS_PER_NODE"), env.at("LOCAL_WORLD_SIZE"));
    EXPECT_EQ(env.at("SLURM_TASKS_PER_NODE"), "2,1");
    EXPECT_EQ(env.at("MASTER_ADDR"), "10.0.0.1");
    EXPECT_EQ(env.at("MASTER_PORT"), "11000");
    const auto config = nlohmann::json::parse(env.at("TF_CONFIG"));
    EXPECT_EQ(config["task"]["index"], rank.rank);
    EXPECT_EQ(config["cluster"]["worker"][1], "10.0.0.1:11001");
    EXPECT_EQ(env.at("AF_SOCKET"), "@sock");
    EXPECT_EQ(env.at("AF_RUN_ID"), "77");
    EXPECT_EQ(env.at("AF_ATTEMPT"), "2");
    EXPECT_EQ(env.at("AF_GENERATION"), "1");
    EXPECT_EQ(env.at("AF_MAX_WORKERS"), "3");
    EXPECT_EQ(env.at("AF_CHECKPOINT_DIR"), "/work/af-runs/77/checkpoints");
  }
}

TEST(RankEnvironment, RemovesWhatOtherLaunchersLeft) {
  Environment inherited = kJob;
  for (const char* name : {"PMIX_RANK", "PMI_FD", "PMI2_X", "OMPI_COMM_WORLD_RANK", "PRTE_MCA_x",
                           "SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "AF_SRUN_FRONT_PID"})
    inherited[name] = "1";
  const Plan plan = plan_of({"a"});
  const Environment env = rank_environment(inherited, plan, plan.ranks[0], facts(), "@s");
  for (const auto& [name, value] : env) {
    EXPECT_FALSE(name.starts_with("PMI") || name.starts_with("OMPI_") || name.starts_with("PRTE_"))
        << name;
    EXPECT_FALSE(name.starts_with("SLURM_CPU_BIND")) << name;
  }
  EXPECT_FALSE(env.contains("AF_SRUN_FRONT_PID"));
}

TEST(RankEnvironment, KeepsWhatIsThePersonsChoice) {
  Environment inherited = kJob;
  const Environment chosen = {{"OMP_NUM_THREADS", "3"},         {"GLOO_SOCKET_IFNAME", "ib0"},
                              {"NCCL_SOCKET_IFNAME", "^lo"},    {"AF_CHECKPOINT_DIR", "/mine"},
                              {"PYTHONUNBUFFERED", ""},         {"CUDA_VISIBLE_DEVICES", "7"},
                              {"HDF5_USE_FILE_LOCKING", "TRUE"}};
  inherited.insert(chosen.begin(), chosen.end());
  // Boilerplate that people paste must do no harm.
  inherited["MASTER_ADDR"] = "localhost";
  inherited["MASTER_PORT"] = "29500";
  const Plan plan = plan_of({"a"});
  const Environment env = rank_environment(inherited, plan, plan.ranks[0], facts(), "@s");
  for (const auto& [name, value] : chosen) EXPECT_EQ(env.at(name), value) << name;
  EXPECT_EQ(env.at("MASTER_ADDR"), "10.0.0.1");
}

TEST(RankEnvironment, SetsDefaultsThatAreMissing) {
  const Plan plan = plan_of({"a"});
  const Environment env = rank_environment({}, plan, plan.ranks[0], facts(), "@s");
  EXPECT_EQ(env.at("OMP_NUM_THREADS"), "8");
  EXPECT_EQ(env.at("GLOO_SOCKET_IFNAME"), "eth0");
  EXPECT_EQ(env.at("NCCL_SOCKET_IFNAME"), "=eth0");
  EXPECT_EQ(env.at("PYTHONUNBUFFERED"), "1");
  EXPECT_EQ(env.at("HDF5_USE_FILE_LOCKING"), "FALSE");
  EXPECT_EQ(env.at("PATH"), kDefaultPath);
  // Outside Slurm no Slurm variable is invented: frameworks would look for a job.
  for (const auto& [name, value] : env) EXPECT_FALSE(name.starts_with("SLURM_")) << name;
}

TEST(RankEnvironment, NamesOfShellsAreReplaced) {
  const Plan plan = plan_of({"a"});
  for (const std::string name : {"bash", "interactive", "train"}) {
    Environment inherited = kJob;
    inherited["SLURM_JOB_NAME"] = name;
    const Environment env = rank_environment(inherited, plan, plan.ranks[0], facts(), "@s");
    EXPECT_EQ(env.at("SLURM_JOB_NAME"), name == "train" ? "train" : "af-77");
  }
}

TEST(RankEnvironment, PreloadsTheShieldOnceAndDropsTheOneOfSrun) {
  const Plan plan = plan_of({"a"});
  Environment inherited = kJob;
  inherited["LD_PRELOAD"] = "/x/libaf_srun_shield.so:/lib/mine.so";
  Environment env = rank_environment(inherited, plan, plan.ranks[0], facts(), "@s");
  EXPECT_EQ(env.at("LD_PRELOAD"), "/opt/af/lib/libaf_shield.so:/lib/mine.so");
  EXPECT_EQ(env.at("AF_SHIELD_STEPD_PID"), "4242");
  env = rank_environment(env, plan, plan.ranks[0], facts(), "@s");
  EXPECT_EQ(env.at("LD_PRELOAD"), "/opt/af/lib/libaf_shield.so:/lib/mine.so");
  RunFacts alone = facts();
  alone.slurmstepd = 0;
  inherited["LD_PRELOAD"] = "/x/libaf_srun_shield.so";
  env = rank_environment(inherited, plan, plan.ranks[0], alone, "@s");
  EXPECT_FALSE(env.contains("LD_PRELOAD"));
}

TEST(RankEnvironment, DevicesComeFromThePlan) {
  Plan plan = plan_of({"a"});
  plan.ranks[0].visible_devices = "MIG-1";
  plan.ranks[0].gpu_memory_gb = 4.75;
  plan.backend_environment = {{"NCCL_NVLS_ENABLE", "0"}};
  const Environment env =
      rank_environment({{"CUDA_VISIBLE_DEVICES", "0,1"}}, plan, plan.ranks[0], facts(), "@s");
  EXPECT_EQ(env.at("CUDA_VISIBLE_DEVICES"), "MIG-1");
  EXPECT_EQ(env.at("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
  EXPECT_EQ(env.at("AF_GPU_MEMORY_GB"), "4.75");
  EXPECT_EQ(env.at("NCCL_NVLS_ENABLE"), "0");
}

TEST(RankEnvironment, TasksPerNodeAsSlurmWritesIt) {
  EXPECT_EQ(tasks_per_node(plan_of({"a"})), "1");
  EXPECT_EQ(tasks_per_node(plan_of({"a", "a", "b", "b"})), "2(x2)");
  EXPECT_EQ(tasks_per_node(plan_of({"a", "a", "b", "c", "d", "d", "e", "e"})), "2,1(x2),2(x2)");
}

}  // namespace
}  // namespace af
