// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch_context.h"

#include <gtest/gtest.h>

#include "launcher/step_command.h"

namespace af {
namespace {

struct Case {
  const char* name;
  Environment environment;
  LaunchMode mode;
  std::string run_id;
  int tasks, task, attempt;
};

TEST(LaunchContext, Table) {
  const std::vector<Case> table = {
      {"no Slurm", {{"PATH", "/bin"}}, LaunchMode::kLocal, "", 1, 0, 0},
      {"batch script",
       {{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       LaunchMode::kFront,
       "7",
       4,
       0,
       0},
      {"batch script of an af job, requeued",
       {{"SLURM_JOB_ID", "7"},
        {"AF_N_WORKERS", "3"},
        {"SLURM_NTASKS", "4"},
        {"AF_RUN_ID", "r"},
        {"SLURM_RESTART_COUNT", "2"}},
       LaunchMode::kFront,
       "r",
       3,
       0,
       2},
      {"task of an array",
       {{"SLURM_JOB_ID", "9"}, {"SLURM_ARRAY_JOB_ID", "7"}, {"SLURM_ARRAY_TASK_ID", "2"}},
       LaunchMode::kFront,
       "7_2",
       1,
       0,
       0},
      {"salloc with nodes only",
       {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "2"}},
       LaunchMode::kFront,
       "7",
       2,
       0,
       0},
      {"task of a step",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "3"},
        {"SLURM_STEP_NUM_TASKS", "4"},
        {"SLURM_NTASKS", "8"},
        {"AF_ATTEMPT", "1"}},
       LaunchMode::kStep,
       "7",
       4,
       3,
       1},
      // use_interactive_step: salloc's shell is a step of Slurm's own, not one with our tasks.
      {"interactive step",
       {{"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "4294967290"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"}},
       LaunchMode::kFront,
       "7",
       2,
       0,
       0},
      {"nonsense is not believed",
       {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "x"}, {"SLURM_RESTART_COUNT", "-1"}},
       LaunchMode::kFront,
       "7",
       1,
       0,
       0},
  };
  for (const Case& row : table) {
    SCOPED_TRACE(row.name);
    const LaunchContext context = read_launch_context(row.environment);
    EXPECT_EQ(context.mode, row.mode);
    EXPECT_EQ(context.run_id, row.run_id);
    EXPECT_EQ(context.tasks, row.tasks);
    EXPECT_EQ(context.task, row.task);
    EXPECT_EQ(context.attempt, row.attempt);
  }
}

TEST(LaunchContext, WhatARankPassesOnIsLeftBehindInAnotherJob) {
  const Environment rank = {{"AF_SOCKET", "@x"},
                            {"AF_RUN_ID", "7"},
                            {"AF_ATTEMPT", "3"},
                            {"AF_CHECKPOINT_DIR", "/runs/7"},
                            {"SLURM_JOB_ID", "7"}};
  Environment same = rank;
  EXPECT_FALSE(leave_inherited_run(same));  // a rank of the running world
  Environment other = rank;
  other["SLURM_JOB_ID"] = "8";
  EXPECT_TRUE(leave_inherited_run(other));
  EXPECT_EQ(other, (Environment{{"SLURM_JOB_ID", "8"}}));
  Environment outside = rank;
  outside.erase("SLURM_JOB_ID");
  EXPECT_TRUE(leave_inherited_run(outside));
  EXPECT_TRUE(outside.empty());
  Environment batch = {{"AF_RUN_ID", "7"}, {"AF_ATTEMPT", "3"}, {"SLURM_JOB_ID", "7"}};
  const Environment before = batch;
  EXPECT_TRUE(leave_inherited_run(batch));  // the plugin's words for the batch script
  EXPECT_EQ(batch, before);
}

TEST(LaunchContext, CpusComeFromTheSettingThenFromSlurm) {
  Environment environment = {{"SLURM_JOB_ID", "7"}, {"SLURM_CPUS_PER_TASK", "4"}};
  EXPECT_EQ(read_launch_context(environment).cpus_per_task, 4);
  environment["AF_CPUS_PER_WORKER"] = "8";
  EXPECT_EQ(read_launch_context(environment).cpus_per_task, 8);
}

bool has(const std::vector<std::string>& argv, const std::string& word) {
  return std::find(argv.begin(), argv.end(), word) != argv.end();
}

TEST(StepCommand, IsOneSrunThatTheLauncherRules) {
  Options options;
  options.command = {"prog", "a b", ""};
  LaunchContext context;
  context.cpus_per_task = 8;
  const StepCommand step = step_command(options, context, {},
                                        {.tasks = 4,
                                         .launcher = "/opt/af/bin/af-launch",
                                         .front = "10.0.0.1:4711",
                                         .run_directory = "/w/r"});
  for (const char* word :
       {"--ntasks=4", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL", "--mpi=none", "--input=0",
        "--cpus-per-task=8", "--agent", "--front=10.0.0.1:4711", "--run-dir=/w/r"})
    EXPECT_TRUE(has(step.argv, word)) << word;
  EXPECT_EQ(step.argv[0], "srun");
  EXPECT_EQ(std::vector<std::string>(step.argv.end() - 4, step.argv.end()),
            (std::vector<std::string>{"--", "prog", "a b", ""}));
  options.bootstrap = "mpi";
  EXPECT_TRUE(has(step_command(options, context, {}, {}).argv, "--mpi=pmix"));
}

TEST(StepCommand, AgentsParseWhatTheFrontWrites) {
  Options options;
  options.command = {"--odd", "--workers", "9"};
  options.backend = "local";
  options.program = ProgramKind::kTorch;
  options.gpus_per_worker = 2;
  options.grace = 2.5;
  options.verbose = true;
  const StepCommand step = step_command(options, {}, {}, {.launcher = "L", .front = "a:1"});
  const auto launcher = std::find(step.argv.begin(), step.argv.end(), "L");
  const Options parsed =
      parse_options(std::vector<std::string>(launcher + 1, step.argv.end())).options.value();
  EXPECT_TRUE(parsed.agent);
  EXPECT_EQ(parsed.command, options.command);
  EXPECT_EQ(parsed.backend, "local");
  EXPECT_EQ(parsed.program, ProgramKind::kTorch);
  EXPECT_EQ(parsed.gpus_per_worker, 2);
  EXPECT_EQ(parsed.grace, 2.5);
  EXPECT_TRUE(parsed.verbose);
}

TEST(StepCommand, VariablesThatWouldChangeTheStepAreRemoved) {
  Environment inherited = {{"PATH", "/bin"}, {"SLURM_JOB_ID", "7"}, {"LD_PRELOAD", "/x.so"}};
  const std::vector<std::string> unwanted = {
      "SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_MEM_PER_GPU", "SLURM_EXPORT_ENV",
      "SLURM_CPU_BIND",      "SLURM_CPU_BIND_LIST", "PMIX_RANK",         "SLURM_NTASKS_PER_NODE"};
  for (const std::string& name : unwanted) inherited[name] = "1";
  const StepCommand step =
      step_command({}, {}, inherited, {.srun_shield = "/lib/s.so", .front_pid = 42});
  for (const std::string& name : unwanted) EXPECT_FALSE(step.environment.contains(name)) << name;
  EXPECT_EQ(step.environment.at("SLURM_JOB_ID"), "7");
  EXPECT_EQ(step.environment.at("LD_PRELOAD"), "/lib/s.so:/x.so");
  EXPECT_EQ(step.environment.at("AF_SRUN_FRONT_PID"), "42");
}

}  // namespace
}  // namespace af
