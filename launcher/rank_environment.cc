// SPDX-License-Identifier: Apache-2.0
#include "launcher/rank_environment.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

namespace af {
namespace {

// A rank that inherits these and calls MPI_Init takes itself for a task of the launcher's own MPI
// world, which is over, and hangs or aborts (open-mpi/ompi#3158). SLURM_CPU_BIND* describe a
// binding that is not the rank's; an srun inside the rank would apply it again.
void remove_foreign(Environment& environment) {
  for (const char* prefix : {"PMIX_", "PMI_", "PMI2_", "OMPI_", "PRTE_", "SLURM_CPU_BIND"})
    erase_prefix(environment, prefix);
  for (const char* name : {"SLURM_PMIXP_ABORT_AGENT_PORT", "SLURM_PMI2_PROC_MAPPING"})
    environment.erase(name);
}

void set_torch(Environment& environment, const Plan& plan, const RankPlan& rank,
               const RunFacts& facts) {
  const std::string world = std::to_string(plan.ranks.size());
  environment["RANK"] = environment["ROLE_RANK"] = std::to_string(rank.rank);
  environment["WORLD_SIZE"] = environment["ROLE_WORLD_SIZE"] = world;
  environment["LOCAL_RANK"] = std::to_string(rank.local_rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(rank.local_world_size);
  environment["GROUP_RANK"] = std::to_string(rank.node_rank);
  environment["GROUP_WORLD_SIZE"] = std::to_string(plan.hosts.size());
  environment["ROLE_NAME"] = "default";
  // A number, not a name: all ranks must come to the same listener, and aliases, FQDNs and
  // 127.0.1.1 in /etc/hosts make names differ between nodes (pytorch#73656).
  environment["MASTER_ADDR"] = plan.master_address;
  environment["MASTER_PORT"] = std::to_string(plan.master_port);
  environment["TORCHELASTIC_RUN_ID"] = facts.run_id;
  environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(facts.attempt);
  environment["TORCHELASTIC_MAX_RESTARTS"] = "0";
  // True would make rank 0 a client of a store that the launcher does not run.
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  environment["TORCHELASTIC_ERROR_FILE"] =
      fmt::format("{}/rank-{}.error.json", facts.log_directory, rank.rank);
  environment.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (facts.interface.empty()) return;
  environment.emplace("GLOO_SOCKET_IFNAME", facts.interface);
  environment.emplace("NCCL_SOCKET_IFNAME", "=" + facts.interface);  // '=': this name exactly
}

void set_slurm(Environment& environment, const Plan& plan, const RankPlan& rank,
               const RunFacts& facts) {
  if (!environment.contains("SLURM_JOB_ID")) return;
  const std::string world = std::to_string(plan.ranks.size());
  const std::string nodes = std::to_string(plan.hosts.size());
  environment["SLURM_PROCID"] = std::to_string(rank.rank);
  environment["SLURM_LOCALID"] = std::to_string(rank.local_rank);
  environment["SLURM_NODEID"] = std::to_string(rank.node_rank);
  for (const char* name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"})
    environment[name] = world;
  for (const char* name : {"SLURM_NNODES", "SLURM_STEP_NUM_NODES"}) environment[name] = nodes;
  // Frameworks compare it with their number of devices; Slurm itself sets it only if it was asked
  // for (Lightning#20391).
  environment["SLURM_NTASKS_PER_NODE"] = std::to_string(rank.local_world_size);
  environment["SLURM_TASKS_PER_NODE"] = environment["SLURM_STEP_TASKS_PER_NODE"] =
      tasks_per_node(plan);
  // Lightning takes a job of these names for a shell in which nobody called srun.
  const std::string job_name = value_or(environment, "SLURM_JOB_NAME");
  if (job_name == "bash" || job_name == "interactive")
    environment["SLURM_JOB_NAME"] = "af-" + facts.run_id;
}

std::string tensorflow_config(const Plan& plan, const RankPlan& rank) {
  nlohmann::json workers = nlohmann::json::array();
  for (const Worker& worker : plan.workers) {
    const bool v6 = worker.address.find(':') != std::string::npos;
    workers.push_back(v6 ? fmt::format("[{}]:{}", worker.address, worker.port)
                         : fmt::format("{}:{}", worker.address, worker.port));
  }
  return nlohmann::json{{"cluster", {{"worker", workers}}},
                        {"task", {{"type", "worker"}, {"index", rank.rank}}}}
      .dump();
}

void set_af(Environment& environment, const Plan& plan, const RankPlan& rank, const RunFacts& facts,
            const std::string& socket) {
  environment["AF_RUN_ID"] = facts.run_id;
  environment["AF_ATTEMPT"] = std::to_string(facts.attempt);
  environment["AF_GENERATION"] = std::to_string(facts.generation);
  environment["AF_MAX_WORKERS"] = std::to_string(
      facts.max_workers > 0 ? facts.max_workers : static_cast<int>(plan.ranks.size()));
  environment["AF_RUN_DIR"] = facts.run_directory;
  environment.emplace("AF_CHECKPOINT_DIR", facts.run_directory + "/checkpoints");
  environment["AF_BACKEND"] = plan.backend;
  environment["AF_LOCAL_RANK"] = std::to_string(rank.place_on_node);
  environment["AF_GPU_MEMORY_GB"] = fmt::format("{:g}", rank.gpu_memory_gb);
  environment["AF_SOCKET"] = socket;
  if (facts.elastic)
    environment["AF_ELASTIC"] = "1";
  else
    environment.erase("AF_ELASTIC");
}

// Behind what the person has there, but before what pip has installed: the client that is found
// fits this launcher. `import af` works in every environment.
void set_python(Environment& environment, const RunFacts& facts) {
  if (facts.python_client.empty()) return;
  std::string& path = environment["PYTHONPATH"];
  if ((":" + path + ":").find(":" + facts.python_client + ":") != std::string::npos) return;
  path += (path.empty() ? "" : ":") + facts.python_client;
}

// HDF5 locks a file that it opens, also for reading. NFS and Lustre without a lock service then
// give errno 11, 37 or 524 in h5py.File() (h5py#1082, #1101; HDFGroup/hdf5#3311), and a killed
// rank's lock stays. Training reads: the locks guard nothing here.
void set_hdf5(Environment& environment) {
  environment.emplace("HDF5_USE_FILE_LOCKING", "FALSE");
}

void set_devices(Environment& environment, const RankPlan& rank) {
  if (!rank.visible_devices) return;
  environment["CUDA_VISIBLE_DEVICES"] = *rank.visible_devices;
  // The numbers are NVML's; CUDA's own default order is "fastest first".
  environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
}

void set_preload(Environment& environment, const RunFacts& facts) {
  // The shield of srun comes along from the front through srun's own environment: not for ranks.
  std::string kept;
  const std::string inherited = value_or(environment, "LD_PRELOAD");
  for (size_t start = 0; start < inherited.size();) {
    const size_t end = std::min(inherited.find_first_of(": ", start), inherited.size());
    const std::string library = inherited.substr(start, end - start);
    start = end + 1;
    if (library.empty() || library.ends_with("/libaf_srun_shield.so")) continue;
    if (library == facts.shield_library) continue;
    kept += (kept.empty() ? "" : ":") + library;
  }
  environment.erase("AF_SRUN_FRONT_PID");
  environment.erase("AF_SHIELD_STEPD_PID");
  if (!facts.shield_library.empty() && facts.slurmstepd > 0) {
    kept = facts.shield_library + (kept.empty() ? "" : ":" + kept);
    environment["AF_SHIELD_STEPD_PID"] = std::to_string(facts.slurmstepd);
  }
  if (kept.empty())
    environment.erase("LD_PRELOAD");
  else
    environment["LD_PRELOAD"] = kept;
}

}  // namespace

std::string tasks_per_node(const Plan& plan) {
  std::vector<int> sizes;
  for (const RankPlan& rank : plan.ranks)
    if (rank.place_on_node == 0) sizes.push_back(rank.local_world_size);
  std::string text;
  for (size_t i = 0; i < sizes.size();) {
    size_t same = i;
    while (same < sizes.size() && sizes[same] == sizes[i]) ++same;
    text += (text.empty() ? "" : ",") + std::to_string(sizes[i]);
    if (same - i > 1) text += fmt::format("(x{})", same - i);
    i = same;
  }
  return text;
}

Environment rank_environment(const Environment& inherited, const Plan& plan, const RankPlan& rank,
                             const RunFacts& facts, const std::string& socket) {
  Environment environment = inherited;
  remove_foreign(environment);
  set_torch(environment, plan, rank, facts);
  set_slurm(environment, plan, rank, facts);
  set_af(environment, plan, rank, facts, socket);
  set_hdf5(environment);
  set_devices(environment, rank);
  set_preload(environment, facts);
  set_python(environment, facts);
  environment["TF_CONFIG"] = tensorflow_config(plan, rank);
  for (const auto& [name, value] : plan.backend_environment) environment.emplace(name, value);
  environment.emplace("PYTHONUNBUFFERED", "1");
  // sbatch --export=NONE leaves none: bash then has one of its own that it does not export.
  environment.emplace("PATH", kDefaultPath);
  if (facts.cpus_per_rank > 0)
    environment.emplace("OMP_NUM_THREADS", std::to_string(facts.cpus_per_rank));
  return environment;
}

}  // namespace af
