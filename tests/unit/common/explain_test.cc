// SPDX-License-Identifier: Apache-2.0
// The text is compared whole: people's scripts and the documentation rely on its layout.
#include "common/explain.h"

#include <gtest/gtest.h>

namespace af {
namespace {

constexpr char kSite[] = R"(
gpus:
  - {name: t4, gres_type: t4, memory_gb: 16, max_per_node: 2, total: 4}
  - {name: 1g.5gb, gres_type: 1g.5gb, memory_gb: 5, mig: yes, max_per_node: 4, total: 4}
submit: {kept: {partition: kept}}
settings: {af-ram-per-worker-gb: {default: 16}}
environment: {default: /work/env}
)";

std::string explanation(const std::vector<GivenSetting>& given, const NativeOptions& native,
                        const std::string& trailer) {
  const Site site = parse_site(kSite, "af.yaml");
  const Settings settings = resolve_settings(given, site.limits);
  return explain(settings, site, native, build_request(settings, site, native), trailer);
}

TEST(Explain, FixedSizeWithThePersonsOptions) {
  const NativeOptions native{Tool::kSbatch,
                             {{"nodes", "3-3"},
                              {"exclusive", "exclusive"},
                              {"constraint", "a|b"},
                              {"job-name", "my job"}}};
  EXPECT_EQ(
      explanation({{SettingId::kNWorkers, "4", Source::kScript},
                   {SettingId::kCpusPerWorker, "2", Source::kEnvironment}},
                  native, "train.sh"),
      "af: settings\n"
      "  af-max-workers        -\n"
      "  af-n-workers          4           #SBATCH\n"
      "  af-min-gpu-memory-gb  any\n"
      "  af-gpus-per-worker    1           default\n"
      "  af-cpus-per-worker    2           environment\n"
      "  af-ram-per-worker-gb  16          af.yaml\n"
      "  af-env                /work/env   af.yaml\n"
      "af: request\n"
      "  sbatch --ntasks=4 --gpus-per-task=1 --cpus-per-task=2 --mem-per-gpu=16G "
      "--partition=kept --constraint='a|b' --exclusive --job-name='my job' --nodes=3 train.sh\n"
      "af: where\n"
      "  partition kept\n"
      "  GPU t4 (16 GB, 4 at the site, at most 2 on a node)\n"
      "  GPU 1g.5gb (5 GB, MIG instance, 4 at the site, at most 4 on a node)\n"
      "af: notes\n"
      "  af-n-workers=4: starts only when all are free\n");
}

TEST(Explain, MaxWorkersUnderSrunOnOnePartitionsT4s) {
  EXPECT_EQ(explanation({{SettingId::kMaxWorkers, "3"}, {SettingId::kMinGpuMemoryGb, "16"}},
                        {Tool::kSrun, {{"partition", "urgent"}}}, ""),
            "af: settings\n"
            "  af-max-workers        3           command line\n"
            "  af-n-workers          -\n"
            "  af-min-gpu-memory-gb  16          command line\n"
            "  af-gpus-per-worker    1           default\n"
            "  af-cpus-per-worker    8           default\n"
            "  af-ram-per-worker-gb  16          af.yaml\n"
            "  af-env                /work/env   af.yaml\n"
            "af: request\n"
            "  srun --ntasks=1 --gpus-per-task=t4:1 --cpus-per-task=8 --mem-per-gpu=16G "
            "--gpu-bind=closest --partition=urgent\n"
            "af: where\n"
            "  partition urgent\n"
            "  GPU t4 (16 GB, 4 at the site, at most 2 on a node)\n"
            "af: notes\n"
            "  af-max-workers=3: the job has one worker, and no others join: af.yaml has no spare "
            "way to submit\n"
            "  --partition=urgent is yours and kept\n");
}

TEST(ShellQuoted, QuotesOnlyWhatAShellWouldChange) {
  const struct {
    const char *text, *expected;
  } table[] = {
      {"kept", "kept"}, {"t4:1", "t4:1"},       {"a|b", "'a|b'"},
      {"", "''"},       {"it's", "'it'\\''s'"}, {"$X", "'$X'"},
      {"*", "'*'"},     {"a b", "'a b'"},       {"/work/x-1_2.sh", "/work/x-1_2.sh"},
  };
  for (const auto& row : table) EXPECT_EQ(shell_quoted(row.text), row.expected);
}

}  // namespace
}  // namespace af
