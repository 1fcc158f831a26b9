// SPDX-License-Identifier: Apache-2.0
// Which processes a step's end may kill (case B29), on real ones.
#include "spank/sweep.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace af {
namespace {

// One entry of an environ, with its end.
std::string entry(const std::string& text) {
  return text + '\0';
}

SweepMark mark_of_step(uint32_t step) {
  SweepMark mark;
  mark.uid = ::getuid();
  mark.job_id = 77;
  mark.run_id = "77";
  mark.node = "n1";
  mark.step_id = step;
  return mark;
}

std::string environment(const char* job, const char* run, const char* node, const char* step) {
  std::string text = entry("PATH=/bin");
  if (job) text += entry(std::string("SLURM_JOB_ID=") + job);
  if (run) text += entry(std::string("AF_RUN_ID=") + run);
  if (node) text += entry(std::string("SLURMD_NODENAME=") + node);
  if (step) text += entry(std::string("SLURM_STEP_ID=") + step);
  return text + entry("HOME=/x");
}

TEST(CarriesMark, AllOfItHasToMatch) {
  const SweepMark step = mark_of_step(3), batch = mark_of_step(kBatchStep);
  EXPECT_TRUE(carries_mark(environment("77", "77", "n1", "3"), step));
  EXPECT_FALSE(carries_mark(environment("78", "77", "n1", "3"), step));      // another job
  EXPECT_FALSE(carries_mark(environment("77", "7", "n1", "3"), step));       // another run
  EXPECT_FALSE(carries_mark(environment("77", nullptr, "n1", "3"), step));   // not an af job
  EXPECT_FALSE(carries_mark(environment("77", "77", "n2", "3"), step));      // another node
  EXPECT_FALSE(carries_mark(environment("77", "77", "n1", "4"), step));      // another step
  EXPECT_FALSE(carries_mark(environment("77", "77", "n1", nullptr), step));  // the batch script
  EXPECT_TRUE(carries_mark(environment("77", "77", "n1", nullptr), batch));
  EXPECT_FALSE(carries_mark(environment("77", "77", "n1", "3"), batch));  // a step may be saving
  EXPECT_FALSE(carries_mark("", step));
  EXPECT_FALSE(carries_mark(entry("XSLURM_JOB_ID=77") + entry("AF_RUN_ID=77"), batch));
  SweepMark any_run = step;
  any_run.run_id.clear();
  EXPECT_TRUE(carries_mark(environment("77", "other", "n1", "3"), any_run));
  EXPECT_FALSE(carries_mark(environment("77", nullptr, "n1", "3"), any_run));
}

// A process with that environment that is nobody's child: a double fork with setsid. Its pipe ends
// when it does.
struct Daemon {
  int alive = -1;
  explicit Daemon(const std::vector<std::string>& variables) {
    int ends[2];
    if (::pipe(ends) != 0) return;
    const pid_t child = ::fork();
    if (child == 0) {
      ::setsid();
      if (::fork() != 0) ::_exit(0);
      ::close(ends[0]);
      ::signal(SIGTERM, SIG_IGN);
      std::vector<char*> list;
      list.reserve(variables.size() + 1);
      for (const std::string& variable : variables)
        list.push_back(const_cast<char*>(variable.c_str()));
      list.push_back(nullptr);
      const char* const words[] = {"/bin/sh", "-c", "echo r >&3; exec sleep 60", nullptr};
      ::dup2(ends[1], 3);
      ::execve("/bin/sh", const_cast<char* const*>(words), list.data());
      ::_exit(127);
    }
    ::waitpid(child, nullptr, 0);
    ::close(ends[1]);
    alive = ends[0];
    char byte[2];
    if (::read(alive, byte, 2) != 2) ADD_FAILURE() << "the daemon did not start";
  }
  bool is_alive() const {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(alive, &set);
    timeval wait{0, 200 * 1000};
    return ::select(alive + 1, &set, nullptr, nullptr, &wait) == 0;
  }
  ~Daemon() { ::close(alive); }
};

TEST(Sweep, EndsWhatCarriesTheMarkAndNothingElse) {
  // Unique in this machine, so that the test of another user's checkout is left alone.
  const std::string job = std::to_string(1000000000 + ::getpid());
  const std::string id = "SLURM_JOB_ID=" + job, run = "AF_RUN_ID=" + job;
  const Daemon escaped({id, run, "SLURMD_NODENAME=n1", "SLURM_STEP_ID=0"});
  const Daemon other_step({id, run, "SLURMD_NODENAME=n1", "SLURM_STEP_ID=1"});
  const Daemon other_job({"SLURM_JOB_ID=1", run, "SLURMD_NODENAME=n1", "SLURM_STEP_ID=0"});
  SweepMark mark = mark_of_step(0);
  mark.job_id = static_cast<uint32_t>(std::stoul(job));
  mark.run_id = job;

  SweepMark another_user = mark;
  another_user.uid = ::getuid() + 1;
  EXPECT_EQ(sweep(another_user, std::chrono::seconds(2)).killed, 0);
  EXPECT_TRUE(escaped.is_alive());

  const SweepResult result = sweep(mark, std::chrono::seconds(2));
  EXPECT_EQ(result.killed, 1);
  EXPECT_EQ(result.left, 0);
  EXPECT_FALSE(escaped.is_alive());
  EXPECT_TRUE(other_step.is_alive());
  EXPECT_TRUE(other_job.is_alive());

  mark.step_id = 1;
  EXPECT_EQ(sweep(mark, std::chrono::seconds(2)).killed, 1);
  mark.step_id = 0;
  mark.job_id = 1;
  EXPECT_EQ(sweep(mark, std::chrono::seconds(2)).killed, 1);
  EXPECT_FALSE(other_job.is_alive());
}

}  // namespace
}  // namespace af
