// SPDX-License-Identifier: Apache-2.0
// The variables of submit side and steps: inherited_environment, job_environment and
// environment_activation, which are pure.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "spank/environment_activation.h"
#include "spank/inherited_environment.h"
#include "spank/job_environment.h"

namespace af::spank {
namespace {

class FakeFiles : public FileView {
 public:
  explicit FakeFiles(std::set<std::string> paths = {}) : paths_(std::move(paths)) {}
  bool exists(const std::string& path) const override { return paths_.contains(path); }
  bool is_directory(const std::string& path) const override { return paths_.contains(path); }
  bool is_writable(const std::string& path) const override { return paths_.contains(path); }
  std::string real_path(const std::string& path) const override { return path; }

 private:
  std::set<std::string> paths_;
};

std::map<std::string, std::string> after(const StepFacts& step, const FileView& files) {
  auto environment = step.environment;
  for (const auto& [name, value] : environment_changes(step, files)) {
    if (value) {
      environment[name] = *value;
    } else {
      environment.erase(name);
    }
  }
  return environment;
}

StepFacts batch_step() {
  StepFacts step;
  step.job_id = 17;
  step.kind = StepKind::kBatch;
  step.environment = {{"SLURM_SPANK_AF_MAX_WORKERS", "4"},
                      {"SLURM_SPANK_AF_CPUS_PER_WORKER", "8"},
                      {"PATH", "/usr/bin"}};
  return step;
}

TEST(LeftoversTest, APlainSubmissionFromAnAfJobSeesNothingOfIt) {
  const std::vector<std::string> names = {"PATH",
                                          "AF_RUN_ID",
                                          "AF_MAX_WORKERS",
                                          "AF_PATH",  // ArrayFire's
                                          "SLURM_JOB_ID",
                                          "SLURM_SPANK_AF_MAX_WORKERS",
                                          "SLURM_SPANK__SLURM_SPANK_OPTION_af_af_max_workers",
                                          "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_image",
                                          "_SLURM_SPANK_OPTION_af_af_max_workers",
                                          "SRUN_CPUS_PER_TASK"};
  EXPECT_EQ(
      leftovers_of_outer_job(names, Tool::kSbatch),
      (std::vector<std::string>{"AF_RUN_ID", "AF_MAX_WORKERS", "SLURM_SPANK_AF_MAX_WORKERS",
                                "SLURM_SPANK__SLURM_SPANK_OPTION_af_af_max_workers",
                                "_SLURM_SPANK_OPTION_af_af_max_workers", "SRUN_CPUS_PER_TASK"}));
  // A step is part of the run.
  EXPECT_EQ(leftovers_of_outer_job(names, Tool::kSrun),
            (std::vector<std::string>{"SLURM_SPANK__SLURM_SPANK_OPTION_af_af_max_workers",
                                      "_SLURM_SPANK_OPTION_af_af_max_workers"}));
}

TEST(LeftoversTest, InAPlainJobSlurmsOwnVariablesStay) {
  const std::vector<std::string> names = {"SRUN_CPUS_PER_TASK", "SLURM_MEM_PER_GPU"};
  EXPECT_TRUE(leftovers_of_outer_job(names, Tool::kSbatch).empty());
}

TEST(RunIdTest, IsTheJobOrTheArraysTask) {
  StepFacts step;
  step.job_id = 19;
  EXPECT_EQ(run_id(step), "19");
  step.array_job_id = 17;
  step.array_task_id = 2;
  EXPECT_EQ(run_id(step), "17_2");
  step.environment = {{"SLURM_ARRAY_JOB_ID", "17"}, {"SLURM_ARRAY_TASK_ID", "3"}};
  EXPECT_EQ(run_id(step), "17_3");
}

TEST(JobEnvironmentTest, OnlyAJobWithForwardedSettingsIsOurs) {
  StepFacts step = batch_step();
  EXPECT_TRUE(is_af_job(step));
  step.kind = StepKind::kExtern;
  EXPECT_FALSE(is_af_job(step));
  step.kind = StepKind::kRegular;
  step.environment = {{"AF_MAX_WORKERS", "4"}};  // somebody's default, nothing that was asked for
  EXPECT_FALSE(is_af_job(step));
}

TEST(JobEnvironmentTest, TheScriptSeesTheSettingsInForceAndTheRun) {
  StepFacts step = batch_step();
  step.restarts = 2;
  const auto environment = after(step, FakeFiles());
  EXPECT_EQ(environment.at("AF_MAX_WORKERS"), "4");
  EXPECT_EQ(environment.at("AF_RUN_ID"), "17");
  EXPECT_EQ(environment.at("AF_ATTEMPT"), "2");
  EXPECT_EQ(environment.at("SRUN_CPUS_PER_TASK"), "8");
  EXPECT_EQ(environment.at("PATH"), "/usr/bin");
}

TEST(JobEnvironmentTest, AnOverruledDefaultDoesNotStay) {
  StepFacts step = batch_step();
  step.environment["AF_N_WORKERS"] = "9";
  step.environment["AF_MAX_WORKERS"] = "9";
  const auto environment = after(step, FakeFiles());
  EXPECT_FALSE(environment.contains("AF_N_WORKERS"));
  EXPECT_EQ(environment.at("AF_MAX_WORKERS"), "4");
}

TEST(JobEnvironmentTest, CaseB32ACleanJobStillHasPathAndHandsItOn) {
  StepFacts step = batch_step();
  step.environment.erase("PATH");
  step.environment["SLURM_EXPORT_ENV"] = "NONE";
  const auto environment = after(step, FakeFiles());
  EXPECT_EQ(environment.at("PATH"), kDefaultPath);
  EXPECT_FALSE(environment.contains("SLURM_EXPORT_ENV"));
}

TEST(JobEnvironmentTest, ThePersonsCpusOfStepsAreKept) {
  StepFacts step = batch_step();
  step.environment["SRUN_CPUS_PER_TASK"] = "2";
  EXPECT_EQ(after(step, FakeFiles()).at("SRUN_CPUS_PER_TASK"), "2");
}

TEST(JobEnvironmentTest, AStepGetsNoVariablesForScripts) {
  StepFacts step = batch_step();
  step.kind = StepKind::kRegular;
  step.environment["SLURM_EXPORT_ENV"] = "NONE";  // typed by the person on this srun
  const auto environment = after(step, FakeFiles());
  EXPECT_FALSE(environment.contains("SRUN_CPUS_PER_TASK"));
  EXPECT_TRUE(environment.contains("SLURM_EXPORT_ENV"));
}

TEST(ActivationTest, PutsBinFirstOnce) {
  const FakeFiles venv({"/work/env/pyvenv.cfg"});
  const auto first = activation("/work/env", "/usr/bin", venv);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0], (std::pair<std::string, std::string>("PATH", "/work/env/bin:/usr/bin")));
  EXPECT_EQ(first[1], (std::pair<std::string, std::string>("VIRTUAL_ENV", "/work/env")));
  const auto second = activation("/work/env", first[0].second, venv);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].first, "VIRTUAL_ENV");
}

TEST(ActivationTest, KnowsCondaAndAMissingPath) {
  const auto variables = activation("/work/conda", "", FakeFiles({"/work/conda/conda-meta"}));
  ASSERT_EQ(variables.size(), 2u);
  EXPECT_EQ(variables[0].second, std::string("/work/conda/bin:") + kDefaultPath);
  EXPECT_EQ(variables[1].first, "CONDA_PREFIX");
}

}  // namespace
}  // namespace af::spank
