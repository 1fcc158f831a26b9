// SPDX-License-Identifier: Apache-2.0
#include "common/gpu_choice.h"

#include <algorithm>

#include "common/error.h"

namespace af {
namespace {

using Classes = std::vector<const GpuClass*>;

// Workers that fit on all GPUs of the class together, were all of them free.
int capacity(const GpuClass& gpu, int gpus_per_worker) {
  return gpu.total / gpus_per_worker;
}

int capacity(const Classes& classes, int gpus_per_worker) {
  int sum = 0;
  for (const GpuClass* gpu : classes) sum += capacity(*gpu, gpus_per_worker);
  return sum;
}

std::string names(const Classes& classes) {
  std::string text;
  for (const GpuClass* gpu : classes) text += (text.empty() ? "" : ", ") + gpu->name;
  return text;
}

Classes classes_in(const Site& site, const std::vector<std::string>& partitions) {
  Classes found;
  for (const GpuClass& gpu : site.gpus) {
    const bool here =
        partitions.empty() || gpu.partitions.empty() ||
        std::ranges::find_first_of(gpu.partitions, partitions) != gpu.partitions.end();
    if (here) found.push_back(&gpu);
  }
  return found;
}

Classes qualifying_in(const Settings& settings, const Classes& available) {
  Classes qualifying;
  for (const GpuClass* gpu : available)
    if (can_serve(*gpu, settings.min_gpu_memory_gb, settings.gpus_per_worker))
      qualifying.push_back(gpu);
  return qualifying;
}

std::string where(const std::vector<std::string>& partitions) {
  if (partitions.empty()) return "here";
  std::string text;
  for (const std::string& one : partitions) text += (text.empty() ? "" : ", ") + one;
  return fmt::format("in partition {}", text);
}

// Why nothing qualifies, by the first rule that leaves no class.
Error nothing_qualifies(const Settings& settings, const Classes& available,
                        const std::vector<std::string>& partitions) {
  const std::string place = where(partitions);
  const int least = settings.min_gpu_memory_gb.value_or(0);
  int largest = 0;
  for (const GpuClass* gpu : available) largest = std::max(largest, gpu->memory_gb);
  if (largest < least)
    return Error::format("--af-min-gpu-memory-gb={}: no GPU {} has {} GB: the largest has {} GB",
                         least, place, least, largest);
  Classes enough;
  for (const GpuClass* gpu : available)
    if (gpu->memory_gb >= least) enough.push_back(gpu);
  const bool only_slices =
      std::ranges::all_of(enough, [](const GpuClass* gpu) { return gpu->mig; });
  const int per_worker = settings.gpus_per_worker;
  if (only_slices)
    return Error::format(
        "--af-gpus-per-worker={}: the GPUs {} {}are MIG instances ({}), and a process sees only "
        "one "
        "of those: leave the option out",
        per_worker, place, least ? fmt::format("with {} GB or more ", least) : "", names(enough));
  return Error::format(
      "--af-gpus-per-worker={}: no node {} has {} whole GPUs{}: leave the option out", per_worker,
      place, per_worker, least ? fmt::format(" with {} GB or more", least) : "");
}

Error too_many(const Settings& settings, const Classes& qualifying,
               const std::vector<std::string>& partitions) {
  const bool exactly = settings.n_workers.has_value();
  const int per_worker = settings.gpus_per_worker;
  int gpus = 0;
  for (const GpuClass* gpu : qualifying) gpus += gpu->total;
  return Error::format(
      "--af-{}-workers={}: more than there are: {} GPU{} {} can serve ({}), which is {} "
      "worker{}{}: "
      "ask for fewer",
      exactly ? "n" : "max", settings.most_workers(), gpus, gpus == 1 ? "" : "s", where(partitions),
      names(qualifying), capacity(qualifying, per_worker),
      capacity(qualifying, per_worker) == 1 ? "" : "s",
      per_worker == 1 ? "" : fmt::format(" of {} GPUs", per_worker));
}

void ask_for_one(GpuChoice& choice, const GpuClass& gpu) {
  choice.type = gpu.gres_type;
  choice.constraint = gpu.gres_type.empty() ? gpu.feature : "";
}

// Several classes qualify and others in the partition do not.
GpuChoice ask_for_several(const Settings& settings, const Classes& qualifying,
                          const std::vector<std::string>& partitions) {
  GpuChoice choice;
  // Node features only choose between nodes: they say "or", as no GRES request can.
  if (std::ranges::all_of(qualifying, [](const GpuClass* gpu) { return !gpu->feature.empty(); })) {
    choice.classes = qualifying;
    for (const GpuClass* gpu : qualifying) {
      if (("|" + choice.constraint + "|").find("|" + gpu->feature + "|") != std::string::npos)
        continue;
      choice.constraint += (choice.constraint.empty() ? "" : "|") + gpu->feature;
    }
    return choice;
  }
  // One class must do: the one with room for most, since more of it are likely to be free.
  const GpuClass* best = *std::ranges::max_element(qualifying, {}, [&](const GpuClass* gpu) {
    return capacity(*gpu, settings.gpus_per_worker);
  });
  if (capacity(*best, settings.gpus_per_worker) < settings.most_workers())
    throw Error::format(
        "--af-{}-workers={}: no single kind of GPU {} has so many, and Slurm cannot be asked for "
        "'{}' in one job: ask for at most {}, or for other GPUs with --af-min-gpu-memory-gb",
        settings.n_workers ? "n" : "max", settings.most_workers(), where(partitions),
        names(qualifying), capacity(*best, settings.gpus_per_worker));
  choice.classes = {best};
  ask_for_one(choice, *best);
  choice.note = fmt::format("{} would all do; Slurm takes one type in a request, and {} has most",
                            names(qualifying), best->name);
  return choice;
}

}  // namespace

bool can_serve(const GpuClass& gpu, std::optional<int> min_memory_gb, int gpus_per_worker) {
  if (min_memory_gb && gpu.memory_gb < *min_memory_gb) return false;
  if (gpus_per_worker == 1) return true;
  return !gpu.mig && gpu.max_per_node >= gpus_per_worker;
}

void check_capacity(const Settings& settings, const Site& site,
                    const std::vector<std::string>& partitions) {
  const Classes qualifying = qualifying_in(settings, classes_in(site, partitions));
  if (settings.most_workers() > capacity(qualifying, settings.gpus_per_worker))
    throw too_many(settings, qualifying, partitions);
}

GpuChoice choose_gpus(const Settings& settings, const Site& site,
                      const std::vector<std::string>& partitions) {
  const Classes available = classes_in(site, partitions);
  if (available.empty())
    throw Error::format("there are no GPUs {}, says {}: choose another partition, or none",
                        where(partitions), site.file);
  const Classes qualifying = qualifying_in(settings, available);
  if (qualifying.empty()) throw nothing_qualifies(settings, available, partitions);
  if (settings.most_workers() > capacity(qualifying, settings.gpus_per_worker))
    throw too_many(settings, qualifying, partitions);

  if (qualifying.size() > 1 && qualifying.size() < available.size())
    return ask_for_several(settings, qualifying, partitions);
  GpuChoice choice;
  choice.classes = qualifying;
  if (qualifying.size() < available.size()) ask_for_one(choice, *qualifying.front());
  return choice;
}

}  // namespace af
