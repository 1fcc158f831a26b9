// SPDX-License-Identifier: Apache-2.0
#include "launcher/own_worker.h"

#include <unistd.h>

#include <filesystem>

#include "common/hostlist.h"
#include "launcher/cpu_binding.h"
#include "launcher/gpu_inventory.h"
#include "launcher/nccl_version.h"
#include "launcher/network_address.h"

namespace af {
namespace {

std::string short_host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "localhost";
  const std::string text(name);
  return text.substr(0, text.find('.'));
}

// Whom this node has to reach: srun's host, then the other nodes of the step.
std::vector<std::string> peers_of(const LaunchContext& context, const Environment& environment) {
  std::vector<std::string> peers;
  const std::string srun = value_or(environment, "SLURM_LAUNCH_NODE_IPADDR");
  if (!srun.empty()) peers.push_back(srun);
  const std::string nodes =
      value_or(environment, "SLURM_STEP_NODELIST", value_or(environment, "SLURM_JOB_NODELIST"));
  if (nodes.empty()) return peers;
  for (const std::string& node : expand_hostlist(nodes)) {
    if (node == context.node_name) continue;
    peers.push_back(node);
    break;  // one is enough, and names cost a look-up
  }
  return peers;
}

// The person's own choice; "^lo" and lists are NCCL's language and name no single interface.
std::string wanted_interface(const Environment& environment) {
  std::string name = value_or(environment, "GLOO_SOCKET_IFNAME");
  if (name.empty()) name = value_or(environment, "NCCL_SOCKET_IFNAME");
  if (name.starts_with('=')) name.erase(0, 1);
  return name.find_first_of("^,:") == std::string::npos ? name : "";
}

}  // namespace

OwnWorker find_own_worker(const LaunchContext& context, const Environment& environment,
                          const std::string& program) {
  OwnWorker own;
  Worker& worker = own.worker;
  worker.task = context.task;
  worker.host = context.node_name.empty() ? short_host_name() : context.node_name;
  worker.af_version = AF_VERSION;
  GpuResolution gpus = find_gpus();
  worker.gpus = std::move(gpus.gpus);
  own.warnings = std::move(gpus.warnings);
  worker.cpus = allowed_cpus();
  if (context.mode == LaunchMode::kLocal) {
    worker.address = "127.0.0.1";
    own.interface = "lo";
  } else {
    const NetworkAddress network =
        routable_address(peers_of(context, environment), wanted_interface(environment));
    worker.address = network.address;
    own.interface = network.interface;
  }
  own.port = hold_free_port();
  worker.port = own.port.port();
  if (!worker.gpus.empty()) worker.nccl_version = find_nccl_version(program);
  return own;
}

std::string own_program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string installed_library(const std::string& name) {
  const std::filesystem::path path =
      std::filesystem::path(own_program_path()).parent_path().parent_path() / "lib" / name;
  std::error_code error;
  return std::filesystem::exists(path, error) ? path.string() : "";
}

std::string installed_python() {
  const std::filesystem::path prefix =
      std::filesystem::path(own_program_path()).parent_path().parent_path();
  std::error_code error;
  for (const auto& above : {prefix, prefix.parent_path()})
    if (std::filesystem::exists(above / "python/af/__init__.py", error)) return above / "python";
  return "";
}

}  // namespace af
