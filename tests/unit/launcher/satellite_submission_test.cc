// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_submission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "launcher/satellite_name.h"

namespace af {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

SatelliteFacts facts() {
  return {.name = "af-17-0123",
          .run_id = "17",
          .account = "cms",
          .launcher = "/opt/af/bin/af-launch",
          .coordinator = "10.0.0.1:4711",
          .run_directory = "/work/u/af-runs/17",
          .srun_shield = "/opt/af/lib/libaf_srun_shield.so",
          .inherited = {{"PATH", "/usr/bin"},
                        {"HOME", "/home/u"},
                        {"USER", "u"},
                        {"LANG", "C.UTF-8"},
                        {"SLURM_CONF", "/etc/slurm/slurm.conf"},
                        {"AF_MAX_WORKERS", "4"},
                        {"AF_CPUS_PER_WORKER", "6"},
                        {"AF_RAM_PER_WORKER_GB", "16"},
                        {"AF_GPUS_PER_WORKER", "1"},
                        {"AF_MIN_GPU_MEMORY_GB", "10"},
                        {"AF_ENV", "/work/u/my env"},
                        {"AF_RUN_ID", "17"},
                        {"SLURM_JOB_ID", "17"},
                        {"SLURM_MEM_PER_GPU", "16384"},
                        {"SBATCH_PARTITION", "theirs"},
                        {"SLURM_SPANK__SLURM_SPANK_OPTION_af_af_max_workers", "4"}}};
}

TEST(SatelliteSubmission, IsOneWorkerOfTheSpareWayUnderTheRunsName) {
  const SubmissionCommand command = satellite_submission(facts(), 3690, kUnknown, {"n1", "n7"});
  EXPECT_EQ(command.argv,
            (std::vector<std::string>{"sbatch",
                                      "--parsable",
                                      "--job-name=af-17-0123",
                                      "--comment=af:17",
                                      "--no-requeue",
                                      "--nodes=1",
                                      "--chdir=/work/u/af-runs/17",
                                      "--output=/work/u/af-runs/17/logs/satellites/%j.log",
                                      "--open-mode=append",
                                      "--account=cms",
                                      "--time=61",
                                      "--time-min=10",
                                      "--deadline=now+3690",
                                      "--exclude=n1,n7",
                                      "--af-satellite",
                                      "--af-max-workers=1",
                                      "--af-min-gpu-memory-gb=10",
                                      "--af-gpus-per-worker=1",
                                      "--af-cpus-per-worker=6",
                                      "--af-ram-per-worker-gb=16",
                                      "--af-env=/work/u/my env"}));
}

TEST(SatelliteSubmission, TakesNothingOfTheJobAroundItIntoItsEnvironment) {
  EXPECT_EQ(satellite_submission(facts(), 3690, kUnknown, {}).environment,
            (Environment{{"HOME", "/home/u"},
                         {"LANG", "C.UTF-8"},
                         {"PATH", "/usr/bin"},
                         {"SLURM_CONF", "/etc/slurm/slurm.conf"},
                         {"USER", "u"}}));
  EXPECT_EQ(slurm_environment({}), (Environment{{"PATH", kDefaultPath}}));
}

TEST(SatelliteSubmission, AsksForNoMoreTimeThanTheAnchorHas) {
  const struct {
    double left, longest;
    std::vector<std::string> expected;
  } table[] = {
      {120, kUnknown, {"--time=1", "--time-min=1", "--deadline=now+120"}},
      {400, kUnknown, {"--time=6", "--time-min=6", "--deadline=now+400"}},
      {86400, kUnknown, {"--time=1439", "--time-min=10", "--deadline=now+86400"}},
      {86400, 7200, {"--time=120", "--time-min=10", "--deadline=now+86400"}},
      {kUnknown, 300, {"--time=5", "--time-min=5"}},
      {kUnknown, kUnknown, {}},
  };
  for (const auto& row : table) {
    std::vector<std::string> times;
    for (const std::string& word : satellite_submission(facts(), row.left, row.longest, {}).argv)
      if (word.starts_with("--time") || word.starts_with("--deadline")) times.push_back(word);
    EXPECT_EQ(times, row.expected) << row.left;
  }
}

TEST(SatelliteSubmission, ItsScriptIsAStepOfOneAgent) {
  SatelliteFacts given = facts();
  given.run_directory = "/work/a b/run";
  given.verbose = true;
  const std::string script = satellite_submission(given, kUnknown, kUnknown, {}).script;
  EXPECT_TRUE(script.starts_with("#!/bin/sh\n")) << script;
  EXPECT_NE(script.find("\nunset SLURM_MEM_PER_GPU\n"), std::string::npos) << script;
  EXPECT_NE(script.find("\nunset SLURM_GPUS_PER_TASK\n"), std::string::npos) << script;
  EXPECT_TRUE(
      script.ends_with("export AF_SRUN_FRONT_PID=$$\n"
                       "export LD_PRELOAD=/opt/af/lib/libaf_srun_shield.so\n"
                       "exec srun --ntasks=1 --mpi=none --kill-on-bad-exit=0 --wait=0 --export=ALL "
                       "--job-name=af-launch --input=none --cpus-per-task=6 "
                       "/opt/af/bin/af-launch --join=10.0.0.1:4711 --run-dir='/work/a b/run' "
                       "--verbose\n"))
      << script;
}

TEST(SatelliteSubmission, APercentSignInThePathIsNoReplacement) {
  SatelliteFacts given = facts();
  given.run_directory = "/work/50%j/run";
  const std::vector<std::string> argv = satellite_submission(given, kUnknown, kUnknown, {}).argv;
  EXPECT_TRUE(std::ranges::find(argv, "--output=/work/50%%j/run/logs/satellites/%j.log") !=
              argv.end());
}

TEST(SatelliteName, HasWhatSqueueTakesAsOneName) {
  const struct {
    const char *run, *name;
  } table[] = {{"17", "af-17-n"},
               {"12_3", "af-12_3-n"},
               {"local-20250101-1", "af-local-20250101-1-n"},
               {"a,b c/d%e", "af-a_b_c_d_e-n"},
               {"ü", "af-__-n"}};
  for (const auto& row : table) EXPECT_EQ(satellite_name(row.run, "n"), row.name);
  EXPECT_EQ(satellite_name(std::string(200, 'x'), "n").size(), 64 + 5u);
  EXPECT_EQ(satellite_nonce().size(), 16u);
  EXPECT_NE(satellite_nonce(), satellite_nonce());
}

}  // namespace
}  // namespace af
