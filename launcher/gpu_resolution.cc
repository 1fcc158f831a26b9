// SPDX-License-Identifier: Apache-2.0
// What the variables of Slurm mean for a list of GPUs: pure functions of gpu_inventory.h.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "common/error.h"
#include "common/hostlist.h"
#include "launcher/gpu_inventory.h"

namespace af {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    const size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
    if (first != std::string::npos) parts.push_back(part.substr(first, last - first + 1));
  }
  return parts;
}

std::optional<int> number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "0-2,5" -> 0 1 2 5; what is not a number is left out.
std::vector<int> numbers(const std::string& text) {
  std::vector<int> result;
  for (const std::string& part : split(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    if (!first || !last) continue;
    for (int value = *first; value <= *last; ++value) result.push_back(value);
  }
  return result;
}

Gpu bare(int index) {
  Gpu gpu;
  gpu.index = index;
  return gpu;
}

std::string key(const Gpu& gpu) {
  return gpu.uuid.empty() ? "#" + std::to_string(gpu.index) : gpu.uuid;
}

bool holds(const std::vector<Gpu>& list, const Gpu& gpu) {
  return std::any_of(list.begin(), list.end(),
                     [&](const Gpu& other) { return key(other) == key(gpu); });
}

std::string names(const std::vector<Gpu>& list) {
  std::vector<std::string> result(list.size());
  std::transform(list.begin(), list.end(), result.begin(), key);
  return fmt::format("{}", fmt::join(result, ", "));
}

// CUDA_VISIBLE_DEVICES with CUDA's own rule: the first entry that means nothing ends the list.
std::vector<Gpu> named_by_cuda(const std::string& text, const std::vector<Gpu>& all,
                               std::vector<std::string>& warnings) {
  std::vector<Gpu> result;
  for (const std::string& token : split(text, ',')) {
    if (token == "NoDevFiles" || token == "-1") break;
    const std::optional<int> index = number(token);
    if (all.empty()) {
      if (!index && token.rfind("GPU-", 0) != 0 && token.rfind("MIG-", 0) != 0) break;
      Gpu gpu = bare(index.value_or(-1));
      if (!index) gpu.uuid = token;
      gpu.mig = token.rfind("MIG-", 0) == 0;
      if (!gpu.mig) gpu.parent_uuid = gpu.uuid;
      result.push_back(gpu);
      continue;
    }
    const auto found =
        index ? (*index < static_cast<int>(all.size()) ? all.begin() + *index : all.end())
              : std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) {
                  return gpu.uuid.rfind(token, 0) == 0;  // CUDA takes a unique beginning
                });
    if (found == all.end()) {
      warnings.push_back(
          fmt::format("CUDA_VISIBLE_DEVICES names {}, which this node does not show (it shows {})",
                      token, names(all)));
      break;
    }
    if (!holds(result, *found)) result.push_back(*found);
  }
  return result;
}

// The GPUs with Slurm's numbers. Under ConstrainDevices only these are left and are counted from 0
// again, so then the numbers say no more than how many.
std::optional<std::vector<Gpu>> numbered_by_slurm(const std::vector<int>& ids,
                                                  const std::vector<Gpu>& all,
                                                  std::vector<std::string>& warnings) {
  if (ids.empty()) return std::nullopt;
  std::vector<Gpu> result;
  if (all.empty()) {
    for (const int id : ids) result.push_back(bare(id));
    return result;
  }
  if (ids.size() == all.size()) return all;
  for (const int id : ids)
    if (id < static_cast<int>(all.size())) result.push_back(all[id]);
  if (result.size() == ids.size()) return result;
  warnings.push_back(
      fmt::format("Slurm gave this job the GPUs number {} of the node, but the driver shows {} "
                  "here: the number of GPUs in gres.conf and in the machine differ",
                  fmt::join(ids, ", "), all.size()));
  return std::nullopt;
}

bool node_in_list(const std::string& node, const std::string& list) {
  try {
    const std::vector<std::string> names = expand_hostlist(list);
    return std::find(names.begin(), names.end(), node) != names.end();
  } catch (const Error&) {
    return false;  // not what this version understands: then the detail names nothing
  }
}

}  // namespace

GpuResolution resolve_gpus(const std::vector<Gpu>& all, const SlurmGpuEnvironment& environment) {
  GpuResolution result;
  std::vector<Gpu> visible =
      named_by_cuda(environment.cuda_visible_devices.value_or(""), all, result.warnings);
  std::vector<int> ids;
  for (const auto& text : {environment.slurm_step_gpus, environment.slurm_job_gpus})
    if (ids.empty() && text) ids = numbers(*text);
  if (ids.empty() && environment.job_detail) ids = *environment.job_detail;
  const std::optional<std::vector<Gpu>> given = numbered_by_slurm(ids, all, result.warnings);

  if (!given) {
    // No number from Slurm. In a job, what it does not name is not ours, even if it can be seen.
    const bool free_choice = !environment.in_slurm && !environment.cuda_visible_devices;
    result.gpus = free_choice ? all : visible;
    return result;
  }
  if (visible.empty()) {
    // Some binding modes of 22.05 leave the variable empty; unset means the program would see all.
    result.gpus = *given;
    if (!environment.cuda_visible_devices && all.size() > given->size())
      result.warnings.push_back(fmt::format(
          "this job can see all {} GPUs of the node, Slurm gave it {}: using {} only (the site has "
          "no ConstrainDevices, and set no CUDA_VISIBLE_DEVICES)",
          all.size(), given->size(), names(*given)));
    return result;
  }
  if (all.empty()) {
    // Nothing to compare with: UUIDs and numbers cannot be matched. The narrower list is the safer.
    result.gpus = visible;
    if (visible.size() > given->size()) result.gpus.resize(given->size());
    if (visible.size() > given->size())
      result.warnings.push_back(
          fmt::format("CUDA_VISIBLE_DEVICES names {} GPUs, Slurm gave {}: using {} only",
                      visible.size(), given->size(), names(result.gpus)));
    return result;
  }
  for (const Gpu& gpu : visible)
    if (holds(*given, gpu)) result.gpus.push_back(gpu);
  if (result.gpus.empty()) result.gpus = *given;
  if (result.gpus.size() != visible.size() || !holds(visible, result.gpus.front()))
    result.warnings.push_back(
        fmt::format("CUDA_VISIBLE_DEVICES names {}, Slurm gave {}: using {} only", names(visible),
                    names(*given), names(result.gpus)));
  return result;
}

std::optional<std::vector<int>> job_detail_gpus(const std::string& text, const std::string& node) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // "     Nodes=n[1-2] CPU_IDs=0-7 Mem=65536 GRES=gpu:t4:2(IDX:0-1),gpu:1g.5gb:1(IDX:3)"
    std::istringstream words(line);
    std::string word, gres;
    bool here = false;
    while (words >> word) {
      if (word.rfind("Nodes=", 0) == 0) here = node_in_list(node, word.substr(6));
      if (word.rfind("GRES=", 0) == 0) gres = word.substr(5);
    }
    if (!here) continue;
    std::vector<int> ids;
    for (size_t at = 0; (at = gres.find("gpu", at)) != std::string::npos;) {
      const size_t open = gres.find("(IDX:", at), close = gres.find(')', at);
      if (open == std::string::npos || close == std::string::npos || close < open) break;
      for (const int id : numbers(gres.substr(open + 5, close - open - 5))) ids.push_back(id);
      at = close;
    }
    if (!ids.empty()) return ids;
  }
  return std::nullopt;
}

std::vector<std::vector<Gpu>> share_gpus(const std::vector<std::vector<Gpu>>& seen,
                                         int per_worker) {
  std::vector<std::vector<Gpu>> result(seen.size());
  std::set<std::string> all;
  size_t total = 0;
  for (const std::vector<Gpu>& list : seen) {
    for (const Gpu& gpu : list) all.insert(key(gpu));
    total += list.size();
  }
  if (all.empty()) return result;
  if (total == all.size() && seen.size() > 1 &&
      std::none_of(seen.begin(), seen.end(), [](const auto& list) { return list.empty(); }) &&
      per_worker == 0)
    return seen;
  const size_t each = per_worker > 0 ? static_cast<size_t>(per_worker) : all.size() / seen.size();
  std::set<std::string> taken;
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    for (const Gpu& gpu : seen[rank])
      if (result[rank].size() < each && taken.insert(key(gpu)).second) result[rank].push_back(gpu);
    if (each == 0 || result[rank].size() < each)
      throw Error::format(
          "{} tasks on this node need {} GPU(s) each, but the job has {} here: give it more GPUs "
          "or start fewer tasks",
          seen.size(), std::max<size_t>(each, 1), all.size());
  }
  return result;
}

}  // namespace af
