// SPDX-License-Identifier: Apache-2.0
#include "common/request.h"

#include <gtest/gtest.h>

#include "common/error.h"
#include "common/gpu_choice.h"

namespace af {
namespace {

using enum SettingId;
using Native = std::map<std::string, std::string, std::less<>>;
using Options = std::vector<SlurmOption>;

// The sandbox: typed GRES, T4s and slices.
constexpr char kTyped[] = R"(
gpus:
  - {name: t4, gres_type: t4, memory_gb: 16, max_per_node: 2, total: 4}
  - {name: 1g.5gb, gres_type: 1g.5gb, memory_gb: 5, mig: yes, instances_per_card: 2,
     max_per_node: 4, total: 4}
submit: {kept: {partition: kept}, spare: {partition: spare}}
)";
// Hammer's shape: untyped GRES, one T4 a node, the kind is a node feature.
constexpr char kUntyped[] = R"(
gpus:
  - {name: t4, feature: T4, memory_gb: 16, max_per_node: 1, total: 22}
  - {name: a30, feature: A30, memory_gb: 24, max_per_node: 4, total: 8}
  - {name: a100, feature: A100, memory_gb: 40, max_per_node: 2, total: 4}
submit: {kept: {partition: gpu, qos: normal, account: cms}}
)";
// Three typed kinds without features.
constexpr char kThreeTyped[] = R"(
gpus:
  - {name: t4, gres_type: t4, memory_gb: 16, max_per_node: 2, total: 4}
  - {name: a30, gres_type: a30, memory_gb: 24, max_per_node: 4, total: 8}
  - {name: slice, gres_type: 1g.5gb, memory_gb: 5, mig: yes, max_per_node: 7, total: 14}
)";
constexpr char kSlicesOnly[] =
    "gpus: [{name: slice, gres_type: 1g.5gb, memory_gb: 5, mig: yes, max_per_node: 7, total: 14}]";
constexpr char kOneT4ANode[] =
    "gpus: [{name: t4, feature: T4, memory_gb: 16, max_per_node: 1, total: 22}]";
// Kinds that live in different partitions.
constexpr char kByPartition[] = R"(
gpus:
  - {name: t4, gres_type: t4, memory_gb: 16, max_per_node: 2, total: 4, partitions: [old, all]}
  - {name: a30, gres_type: a30, memory_gb: 24, max_per_node: 4, total: 8, partitions: [new, all]}
submit: {kept: {partition: old}}
)";

// Anchors on one old T4, satellites wherever there is a GPU; the spare way has its own account.
constexpr char kElastic[] = R"(
gpus:
  - {name: t4, gres_type: t4, memory_gb: 16, max_per_node: 1, total: 1, partitions: [old]}
  - {name: a30, gres_type: a30, memory_gb: 24, max_per_node: 4, total: 8, partitions: [standby]}
  - {name: slice, gres_type: 1g.5gb, memory_gb: 5, mig: yes, max_per_node: 7, total: 7,
     partitions: [standby]}
submit:
  kept: {partition: old, account: cms}
  spare: {partition: standby, qos: scavenger, account: free}
)";

using Given = std::vector<std::pair<SettingId, const char*>>;

Request request_of(const char* yaml, const Given& given, const Native& native = {},
                   Tool tool = Tool::kSbatch, bool satellite = false) {
  const Site site = parse_site(yaml, "af.yaml");
  std::vector<GivenSetting> given_settings;
  for (const auto& [id, text] : given) given_settings.push_back({id, text});
  Settings settings = resolve_settings(given_settings, site.limits);
  settings.satellite = satellite;
  return build_request(settings, site, {tool, native});
}

Request satellite_request(const char* yaml, const Given& given, const Native& native = {}) {
  return request_of(yaml, given, native, Tool::kSbatch, true);
}

std::string refusal_of(const char* yaml, const Given& given, const Native& native = {}) {
  try {
    request_of(yaml, given, native);
  } catch (const Error& error) {
    return error.what();
  }
  return "no refusal";
}

TEST(Request, NWorkersBecomeTasksWithGpusCpusAndMemory) {
  const Request request = request_of(kTyped, {{kNWorkers, "4"}});
  EXPECT_EQ(request.options, (Options{{"ntasks", "4"},
                                      {"gpus-per-task", "1"},
                                      {"cpus-per-task", "8"},
                                      {"mem-per-gpu", "32G"},
                                      {"partition", "kept"}}));
  EXPECT_EQ(request.workers, 4);
  EXPECT_EQ(request.classes, (std::vector<std::string>{"t4", "1g.5gb"}));
  EXPECT_EQ(request.partitions, std::vector<std::string>{"kept"});
}

TEST(Request, MaxWorkersStartsWithOneAndSaysSo) {
  const Request request = request_of(kTyped, {{kMaxWorkers, "4"}});
  EXPECT_EQ(request.options.front(), (SlurmOption{"ntasks", "1"}));
  EXPECT_EQ(request.notes, std::vector<std::string>{
                               "af-max-workers=4: this job has one worker, which is kept; while it "
                               "runs, up to 3 more join it in partition spare as GPUs are free, "
                               "and may be taken back"});
  EXPECT_EQ(request_of(kUntyped, {{kMaxWorkers, "4"}}).notes,
            std::vector<std::string>{"af-max-workers=4: the job has one worker, and no others "
                                     "join: af.yaml has no spare way to submit"});
}

// The one worker needs a GPU of the kept partition; the others are counted where they will be.
TEST(Request, MaxWorkersCountsTheGpusOfBothPartitions) {
  const Request request = request_of(kElastic, {{kMaxWorkers, "16"}});
  EXPECT_EQ(request.classes, std::vector<std::string>{"t4"});
  EXPECT_EQ(refusal_of(kElastic, {{kMaxWorkers, "17"}}),
            "--af-max-workers=17: more than there are: 16 GPUs in partition old, standby can serve "
            "(t4, a30, slice), which is 16 workers: ask for fewer");
  EXPECT_EQ(refusal_of(kElastic, {{kNWorkers, "2"}}),
            "--af-n-workers=2: more than there are: 1 GPU in partition old can serve (t4), which "
            "is 1 worker: ask for fewer");
  // Several kinds, no features: one kind for each job, and so no limit by the largest of them.
  EXPECT_EQ(refusal_of(kThreeTyped, {{kMaxWorkers, "12"}, {kMinGpuMemoryGb, "6"}}), "no refusal");
}

TEST(Request, SatellitesGoTheSpareWay) {
  EXPECT_EQ(satellite_request(kElastic, {{kMaxWorkers, "1"}}).options,
            (Options{{"ntasks", "1"},
                     {"gpus-per-task", "1"},
                     {"cpus-per-task", "8"},
                     {"mem-per-gpu", "32G"},
                     {"partition", "standby"},
                     {"qos", "scavenger"},
                     {"account", "free"}}));
  // The kind of GPU is the spare partition's.
  const Request large = satellite_request(kElastic, {{kMaxWorkers, "1"}, {kMinGpuMemoryGb, "20"}});
  EXPECT_EQ(large.options[1], (SlurmOption{"gpus-per-task", "a30:1"}));
  // The spare way's own account comes before the anchor's, which comes before none.
  const Request own = satellite_request(kElastic, {{kMaxWorkers, "1"}}, {{"account", "cms"}});
  EXPECT_EQ(own.options.back(), (SlurmOption{"account", "free"}));
  const Request other = satellite_request(kTyped, {{kMaxWorkers, "1"}}, {{"account", "cms"}});
  EXPECT_EQ(other.options.back(), (SlurmOption{"partition", "spare"}));
  EXPECT_EQ(other.notes.front(), "a worker that joins a run, and may be taken back");
  try {
    satellite_request(kUntyped, {{kMaxWorkers, "1"}});
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "af.yaml has no spare way to submit (submit.spare), so no workers can join");
  }
}

// How the GPUs are asked for; "" = the option is not set.
TEST(Request, ChoiceOfGpus) {
  const struct {
    const char* what;
    const char* yaml;
    Given given;
    Native native;
    const char *gpus, *memory, *constraint;
  } table[] = {
      {"any kind will do: untyped", kTyped, {}, {}, "1", "32G", ""},
      {"more than 5 GB: T4s", kTyped, {{kMinGpuMemoryGb, "6"}}, {}, "t4:1", "32G", ""},
      {"5 GB: any", kTyped, {{kMinGpuMemoryGb, "5"}}, {}, "1", "32G", ""},
      {"case B09: two GPUs are T4s", kTyped, {{kGpusPerWorker, "2"}}, {}, "t4:2", "16G", ""},
      {"memory that no half of is whole GB",
       kTyped,
       {{kGpusPerWorker, "2"}, {kRamPerWorkerGb, "5"}},
       {},
       "t4:2",
       "2560M",
       ""},
      {"untyped GRES, all kinds", kUntyped, {}, {}, "1", "32G", ""},
      {"case B12: untyped GRES, one kind by feature",
       kUntyped,
       {{kMinGpuMemoryGb, "30"}},
       {},
       "1",
       "32G",
       "A100"},
      {"untyped GRES, two kinds", kUntyped, {{kMinGpuMemoryGb, "20"}}, {}, "1", "32G", "A30|A100"},
      {"untyped GRES, two GPUs", kUntyped, {{kGpusPerWorker, "2"}}, {}, "2", "16G", "A30|A100"},
      {"the person's constraint and ours",
       kUntyped,
       {{kMinGpuMemoryGb, "20"}},
       {{"constraint", "avx512"}},
       "1",
       "32G",
       "avx512&(A30|A100)"},
      {"the person's 'or' and our single feature",
       kUntyped,
       {{kMinGpuMemoryGb, "30"}},
       {{"constraint", "rack1|rack2"}},
       "1",
       "32G",
       "(rack1|rack2)&A100"},
      {"an 'or' in parentheses",
       kUntyped,
       {{kMinGpuMemoryGb, "20"}},
       {{"constraint", "avx&(rack1|rack2)"}},
       "1",
       "32G",
       "avx&(rack1|rack2)&(A30|A100)"},
      {"one of two, all nodes the same",
       kUntyped,
       {{kMinGpuMemoryGb, "30"}},
       {{"constraint", "[rack1|rack2]"}},
       "1",
       "32G",
       "[rack1|rack2]&A100"},
      {"two 'or's",
       kUntyped,
       {{kMinGpuMemoryGb, "20"}},
       {{"constraint", "rack1|rack2"}},
       "1",
       "32G",
       "(rack1|rack2)&(A30|A100)"},
      {"nothing to add: the person's constraint stays theirs",
       kUntyped,
       {},
       {{"constraint", "rack1|rack2"}},
       "1",
       "32G",
       ""},
      {"typed, two of three kinds: that with most",
       kThreeTyped,
       {{kMinGpuMemoryGb, "6"}},
       {},
       "a30:1",
       "32G",
       ""},
      {"one node has one T4", kOneT4ANode, {{kNWorkers, "22"}}, {}, "1", "32G", ""},
      {"only the partition's kinds count", kByPartition, {}, {}, "1", "32G", ""},
      {"the person's partition",
       kByPartition,
       {{kMinGpuMemoryGb, "20"}},
       {{"partition", "all"}},
       "a30:1",
       "32G",
       ""},
      {"two partitions", kByPartition, {}, {{"partition", "old,new"}}, "1", "32G", ""},
  };
  for (const auto& row : table) {
    SCOPED_TRACE(row.what);
    std::map<std::string, std::string> set;
    for (const SlurmOption& option : request_of(row.yaml, row.given, row.native).options)
      EXPECT_TRUE(set.emplace(option.name, option.value).second) << option.name << " twice";
    EXPECT_EQ(set["gpus-per-task"], row.gpus);
    EXPECT_EQ(set["mem-per-gpu"], row.memory);
    EXPECT_EQ(set["constraint"], row.constraint);
  }
}

TEST(Request, RefusalsInWords) {
  const struct {
    const char* yaml;
    Given given;
    Native native;
    const char* message;
  } table[] = {
      {kTyped,
       {{kMinGpuMemoryGb, "40"}},
       {},
       "--af-min-gpu-memory-gb=40: no GPU here has 40 GB: the largest has 16 GB"},
      {kByPartition,
       {{kMinGpuMemoryGb, "20"}},
       {},
       "--af-min-gpu-memory-gb=20: no GPU in partition old has 20 GB: the largest has 16 GB"},
      {kTyped,
       {{kNWorkers, "9"}},
       {},
       "--af-n-workers=9: more than there are: 8 GPUs in partition kept can serve (t4, 1g.5gb), "
       "which is 8 workers: ask for fewer"},
      {kTyped,
       {{kMaxWorkers, "5"}, {kMinGpuMemoryGb, "16"}},
       {},
       "--af-max-workers=5: more than there are: 4 GPUs in partition kept, spare can serve (t4), "
       "which is 4 workers: ask for fewer"},
      {kTyped,
       {{kNWorkers, "3"}, {kGpusPerWorker, "2"}},
       {},
       "--af-n-workers=3: more than there are: 4 GPUs in partition kept can serve (t4), which is 2 "
       "workers of 2 GPUs: ask for fewer"},
      // Case B09.
      {kSlicesOnly,
       {{kGpusPerWorker, "2"}},
       {},
       "--af-gpus-per-worker=2: the GPUs here are MIG instances (slice), and a process sees only "
       "one of those: leave the option out"},
      {kOneT4ANode,
       {{kGpusPerWorker, "2"}},
       {},
       "--af-gpus-per-worker=2: no node here has 2 whole GPUs: leave the option out"},
      {kThreeTyped,
       {{kNWorkers, "10"}, {kMinGpuMemoryGb, "6"}},
       {},
       "--af-n-workers=10: no single kind of GPU here has so many, and Slurm cannot be asked for "
       "'t4, a30' in one job: ask for at most 8, or for other GPUs with --af-min-gpu-memory-gb"},
      {kByPartition,
       {},
       {{"partition", "cpu"}},
       "there are no GPUs in partition cpu, says af.yaml: choose another partition, or none"},
      {kUntyped,
       {{kMinGpuMemoryGb, "20"}},
       {{"constraint", "(rack1|rack2)|rack3"}},
       "--constraint=(rack1|rack2)|rack3: af has to add 'A30|A100' to it, and Slurm takes no "
       "nested "
       "parentheses: simplify it"},
      {kTyped,
       {{kNWorkers, "2"}},
       {{"nodes", "3"}},
       "--nodes=3: more nodes than the 2 workers that --af-n-workers starts with"},
      {kTyped,
       {{kMaxWorkers, "4"}},
       {{"nodes", "3-3"}},
       "--nodes=3-3: more nodes than the 1 worker that --af-max-workers starts with"},
      {kTyped,
       {{kNWorkers, "6"}},
       {{"nodes", "1"}},
       "--nodes=1: 6 workers do not fit: a node here has GPUs for at most 4"},
  };
  for (const auto& row : table) EXPECT_EQ(refusal_of(row.yaml, row.given, row.native), row.message);
}

TEST(Request, NativeOptionsThatContradictNameTheSettingToUse) {
  const struct {
    const char *option, *value, *use;
  } table[] = {
      {"gres", "gpu:1", "--af-max-workers or --af-n-workers"},
      {"gpus", "2", "--af-max-workers or --af-n-workers"},
      {"gpus-per-node", "1", "--af-max-workers or --af-n-workers"},
      {"gpus-per-socket", "1", "--af-max-workers or --af-n-workers"},
      {"gpus-per-task", "1", "--af-max-workers or --af-n-workers"},
      {"ntasks", "4", "--af-n-workers"},
      {"ntasks-per-node", "4", "--af-n-workers"},
      {"ntasks-per-core", "1", "--af-n-workers"},
      {"ntasks-per-socket", "1", "--af-n-workers"},
      {"ntasks-per-gpu", "1", "--af-n-workers"},
      {"cpus-per-task", "2", "--af-cpus-per-worker"},
      {"cpus-per-gpu", "2", "--af-cpus-per-worker"},
      {"mem", "4G", "--af-ram-per-worker-gb"},
      {"mem-per-cpu", "4G", "--af-ram-per-worker-gb"},
      {"mem-per-gpu", "4G", "--af-ram-per-worker-gb"},
  };
  for (const auto& row : table) {
    const std::string message = refusal_of(kTyped, {}, {{row.option, row.value}});
    EXPECT_TRUE(
        message.starts_with(std::string("--") + row.option + "=" + row.value + " contradicts"))
        << message;
    EXPECT_NE(message.find(std::string("use ") + row.use), std::string::npos) << message;
  }
}

TEST(Request, KeepsThePersonsWayToSubmit) {
  const Native theirs = {{"partition", "urgent"}, {"account", "mine"}, {"exclusive", "exclusive"},
                         {"nodes", "2"},          {"time", "10"},      {"reservation", "r"}};
  for (const SlurmOption& option : request_of(kTyped, {{kNWorkers, "2"}}, theirs).options)
    EXPECT_FALSE(theirs.contains(option.name)) << option.name;
  EXPECT_EQ(request_of(kTyped, {{kNWorkers, "2"}}, theirs).partitions,
            std::vector<std::string>{"urgent"});
}

TEST(Request, TheSitesQosGoesWithTheSitesPartition) {
  const auto names = [](const Request& request) {
    std::string text;
    for (const SlurmOption& option : request.options)
      if (option.name == "partition" || option.name == "qos" || option.name == "account")
        text += option.name + "=" + option.value + " ";
    return text;
  };
  EXPECT_EQ(names(request_of(kUntyped, {})), "partition=gpu qos=normal account=cms ");
  EXPECT_EQ(names(request_of(kUntyped, {}, {{"partition", "p"}})), "account=cms ");
  EXPECT_EQ(names(request_of(kUntyped, {}, {{"qos", "q"}})), "partition=gpu account=cms ");
  EXPECT_EQ(names(request_of(kUntyped, {}, {{"account", "a"}})), "partition=gpu qos=normal ");
}

TEST(Request, OnlySrunBindsGpus) {
  const auto bind_of = [](Tool tool, const Native& native) {
    for (const SlurmOption& option : request_of(kTyped, {}, native, tool).options)
      if (option.name == "gpu-bind") return option.value;
    return std::string();
  };
  EXPECT_EQ(bind_of(Tool::kSrun, {}), "closest");
  EXPECT_EQ(bind_of(Tool::kSrun, {{"gpu-bind", "none"}}), "");
  EXPECT_EQ(bind_of(Tool::kSbatch, {}), "");
  EXPECT_EQ(bind_of(Tool::kSalloc, {}), "");
}

TEST(Request, TheSwitchAndTheRefusalsOfTheSite) {
  const std::string off = std::string(kTyped) + "enabled: no\ndisabled_reason: upgrade on Monday\n";
  EXPECT_EQ(refusal_of(off.c_str(), {}),
            "af is switched off at this site: upgrade on Monday (af.yaml: enabled: no); without "
            "--af-* options jobs run as ever");
  const std::string refuses = std::string(kTyped) + "conflicts: {refuse: [exclusive]}\n";
  EXPECT_EQ(refusal_of(refuses.c_str(), {}, {{"exclusive", "exclusive"}}),
            "--exclusive cannot be used with --af-* options here (af.yaml refuses it)");
}

TEST(CanServe, MigInstancesNeverServeTwoGpus) {
  GpuClass gpu{.name = "g", .memory_gb = 10, .max_per_node = 4, .total = 4};
  EXPECT_TRUE(can_serve(gpu, {}, 1));
  EXPECT_TRUE(can_serve(gpu, 10, 2));
  EXPECT_FALSE(can_serve(gpu, 11, 1));
  gpu.mig = true;
  EXPECT_TRUE(can_serve(gpu, {}, 1));
  EXPECT_FALSE(can_serve(gpu, {}, 2));
}

TEST(NodeRange, Table) {
  const struct {
    const char* text;
    int min, max;
  } table[] = {{"3", 3, 3}, {"3-5", 3, 5}, {"3-3", 3, 3}, {"", 0, 0}, {"x", 0, 0}, {"2-", 2, 2}};
  for (const auto& row : table) {
    EXPECT_EQ(parse_node_range(row.text).min, row.min) << row.text;
    EXPECT_EQ(parse_node_range(row.text).max, row.max) << row.text;
  }
}

}  // namespace
}  // namespace af
