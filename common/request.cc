// SPDX-License-Identifier: Apache-2.0
#include "common/request.h"

#include <algorithm>

#include "common/error.h"
#include "common/gpu_choice.h"

namespace af {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    if (end != 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  }
  return parts;
}

// As Slurm itself prints it, so that what is read back equals what was set: "32G", "5120M" -> "5G".
std::string spell_mb(int megabytes) {
  return megabytes % 1024 == 0 ? fmt::format("{}G", megabytes / 1024)
                               : fmt::format("{}M", megabytes);
}

// Whether an "or" stands outside of all parentheses and brackets.
bool has_bare_or(const std::string& constraint) {
  int depth = 0;
  for (const char c : constraint) {
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c == '|' && depth == 0) return true;
  }
  return false;
}

// Both must hold. Slurm 22.05 reads & and | from left to right (A|B&C is (A|B)&C, A&B|C is (A&B)|C)
// and takes parentheses one level deep: so a side with a bare | gets them.
std::string both_constraints(const std::string& theirs, const std::string& ours) {
  if (theirs.empty() || ours.empty()) return theirs.empty() ? ours : theirs;
  const auto enclosed = [&](const std::string& side) {
    if (!has_bare_or(side)) return side;
    if (side.find_first_of("()[]") != side.npos)
      throw Error::format(
          "--constraint={}: af has to add '{}' to it, and Slurm takes no nested "
          "parentheses: simplify it",
          theirs, ours);
    return "(" + side + ")";
  };
  return enclosed(theirs) + "&" + enclosed(ours);
}

void check_nodes(const Settings& settings, const GpuChoice& choice, const std::string& nodes,
                 int workers) {
  const NodeRange range = parse_node_range(nodes);
  if (range.min > workers)
    throw Error::format("--nodes={}: more nodes than the {} worker{} that {} starts with", nodes,
                        workers, workers == 1 ? "" : "s",
                        settings.n_workers ? "--af-n-workers" : "--af-max-workers");
  int most = 0;
  for (const GpuClass* gpu : choice.classes)
    most = std::max(most, gpu->max_per_node / settings.gpus_per_worker);
  if (range.max > 0 && range.max * most < workers)
    throw Error::format("--nodes={}: {} workers do not fit: a node here has GPUs for at most {}",
                        nodes, workers, most);
}

const SubmitWay& way_of(const Settings& settings, const Site& site) {
  return settings.satellite ? site.spare : site.kept;
}

std::vector<std::string> partitions_of(const SubmitWay& way, const NativeOptions& native) {
  return split(native.set.contains("partition") ? native.get("partition") : way.partition, ',');
}

// What all workers of a run can use: of an elastic one, the kept and the spare partition. Empty:
// all of the site.
std::vector<std::string> reach(const Settings& settings, const Site& site,
                               const std::vector<std::string>& own) {
  std::vector<std::string> all = own;
  if (settings.n_workers || settings.satellite || !has_spare_way(site) || own.empty()) return all;
  const std::vector<std::string> spare = split(site.spare.partition, ',');
  if (spare.empty()) return {};
  for (const std::string& one : spare)
    if (std::ranges::find(all, one) == all.end()) all.push_back(one);
  return all;
}

// The way to submit, as far as the person has not chosen.
void add_way(const Settings& settings, const SubmitWay& way, const NativeOptions& native,
             Request& request) {
  const bool own_partition = native.set.contains("partition");
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty() && !native.set.contains(name)) request.options.push_back({name, value});
  };
  add("partition", way.partition);
  // A QOS belongs to a partition: the site's may not be allowed in the person's.
  if (!own_partition) add("qos", way.qos);
  // af-launch hands the anchor's account on, for sites whose spare way has none of its own.
  if (settings.satellite && !way.account.empty())
    request.options.push_back({"account", way.account});
  else
    add("account", way.account);
}

std::string spare_words(const Site& site) {
  if (site.spare.partition.empty()) return "with QOS " + site.spare.qos;
  return "in partition " + site.spare.partition;
}

void add_notes(const Settings& settings, const Site& site, const GpuChoice& choice,
               const NativeOptions& native, Request& request) {
  const int most = settings.most_workers();
  if (settings.n_workers)
    request.notes.push_back(fmt::format("af-n-workers={}: starts only when all are free", most));
  else if (settings.satellite)
    request.notes.push_back("a worker that joins a run, and may be taken back");
  else if (most == 1)
    request.notes.push_back("the job has one worker");
  else if (!has_spare_way(site))
    request.notes.push_back(
        fmt::format("af-max-workers={}: the job has one worker, and no others join: {} has no "
                    "spare way to submit",
                    most, site.file.empty() ? "the site" : site.file));
  else
    request.notes.push_back(
        fmt::format("af-max-workers={}: this job has one worker, which is kept; while it runs, up "
                    "to {} more join it {} as GPUs are free, and may be taken back",
                    most, most - 1, spare_words(site)));
  if (!choice.note.empty()) request.notes.push_back(choice.note);
  for (const char* name : {"partition", "qos", "account"})
    if (native.set.contains(name))
      request.notes.push_back(fmt::format("--{}={} is yours and kept", name, native.get(name)));
  if (native.set.contains("constraint") && !choice.constraint.empty())
    request.notes.push_back(fmt::format("your --constraint={} is combined with {}",
                                        native.get("constraint"), choice.constraint));
}

}  // namespace

bool has_spare_way(const Site& site) {
  return !site.spare.partition.empty() || !site.spare.qos.empty();
}

Request build_request(const Settings& settings, const Site& site, const NativeOptions& native) {
  if (!site.enabled) throw Error(disabled_message(site));
  if (settings.satellite && !has_spare_way(site))
    throw Error::format("{} has no spare way to submit (submit.spare), so no workers can join",
                        site.file.empty() ? "the site" : site.file);
  refuse_contradictions(native, site);

  Request request;
  const SubmitWay& way = way_of(settings, site);
  request.partitions = partitions_of(way, native);
  // The kind of GPU is this job's own; each that joins chooses for itself.
  Settings own = settings;
  if (!settings.n_workers) own.max_workers = 1;
  const GpuChoice choice = choose_gpus(own, site, request.partitions);
  check_capacity(settings, site, reach(settings, site, request.partitions));
  for (const GpuClass* gpu : choice.classes) request.classes.push_back(gpu->name);
  request.workers = settings.n_workers.value_or(1);
  if (native.set.contains("nodes"))
    check_nodes(settings, choice, native.get("nodes"), request.workers);

  const int per_worker = settings.gpus_per_worker;
  request.options = {
      {"ntasks", std::to_string(request.workers)},
      {"gpus-per-task",
       fmt::format("{}{}{}", choice.type, choice.type.empty() ? "" : ":", per_worker)},
      {"cpus-per-task", std::to_string(settings.cpus_per_worker)},
      {"mem-per-gpu", spell_mb(settings.ram_per_worker_gb * 1024 / per_worker)},
  };
  add_way(settings, way, native, request);
  if (!choice.constraint.empty())
    request.options.push_back(
        {"constraint", both_constraints(native.get("constraint"), choice.constraint)});
  // gpus-per-task makes srun hide all but a task's own GPU, and then device LOCAL_RANK does not
  // exist (case B07). "closest" left all visible on nodes without affinity; "none" left
  // CUDA_VISIBLE_DEVICES empty on 22.05.
  if (native.tool == Tool::kSrun && !native.set.contains("gpu-bind"))
    request.options.push_back({"gpu-bind", "closest"});
  add_notes(settings, site, choice, native, request);
  return request;
}

std::string heterogeneous_job_message() {
  return "--af-* options do not work in a heterogeneous job (several components separated by ':' "
         "or "
         "hetjob): submit the parts as jobs of their own";
}

std::string disabled_message(const Site& site) {
  return fmt::format(
      "af is switched off at this site{}{} ({}: enabled: no); without --af-* options "
      "jobs run as ever",
      site.disabled_reason.empty() ? "" : ": ", site.disabled_reason, site.file);
}

}  // namespace af
