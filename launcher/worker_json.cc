// SPDX-License-Identifier: Apache-2.0
#include "launcher/worker_json.h"

namespace af {

void to_json(nlohmann::json& j, const Gpu& gpu) {
  j = {{"uuid", gpu.uuid},   {"parent_uuid", gpu.parent_uuid}, {"type", gpu.type},
       {"index", gpu.index}, {"memory_gb", gpu.memory_gb},     {"driver", gpu.driver},
       {"mig", gpu.mig},     {"near_cpus", gpu.near_cpus}};
}

void from_json(const nlohmann::json& j, Gpu& gpu) {
  gpu.uuid = j.value("uuid", gpu.uuid);
  gpu.parent_uuid = j.value("parent_uuid", gpu.parent_uuid);
  gpu.type = j.value("type", gpu.type);
  gpu.index = j.value("index", gpu.index);
  gpu.memory_gb = j.value("memory_gb", gpu.memory_gb);
  gpu.driver = j.value("driver", gpu.driver);
  gpu.mig = j.value("mig", gpu.mig);
  gpu.near_cpus = j.value("near_cpus", gpu.near_cpus);
}

void to_json(nlohmann::json& j, const Worker& worker) {
  j = {{"task", worker.task},
       {"host", worker.host},
       {"address", worker.address},
       {"port", worker.port},
       {"gpus", worker.gpus},
       {"cpus", worker.cpus},
       {"nccl_version", worker.nccl_version},
       {"af_version", worker.af_version}};
}

void from_json(const nlohmann::json& j, Worker& worker) {
  worker.task = j.value("task", worker.task);
  worker.host = j.value("host", worker.host);
  worker.address = j.value("address", worker.address);
  worker.port = j.value("port", worker.port);
  worker.gpus = j.value("gpus", worker.gpus);
  worker.cpus = j.value("cpus", worker.cpus);
  worker.nccl_version = j.value("nccl_version", worker.nccl_version);
  worker.af_version = j.value("af_version", worker.af_version);
}

}  // namespace af
