// SPDX-License-Identifier: Apache-2.0
#include "launcher/satellite_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <asio/post.hpp>
#include <chrono>
#include <filesystem>

namespace af {
namespace {

namespace fs = std::filesystem;

ChildResult answer(int code, const std::string& out, const std::string& err = "") {
  ChildResult result;
  result.code = code;
  result.out = out;
  result.err = err;
  return result;
}

// Accepts everything, and notes it; can be told not to answer.
class FakeSlurm : public SlurmCommands {
 public:
  explicit FakeSlurm(asio::io_context& io) : io_(io) {}
  void submit(const SubmissionCommand& submission, OnEnd on_end) override {
    line("sbatch");
    last_submission = submission;
    reply(on_end, refuse.empty() ? answer(0, std::to_string(next_++) + "\n")
                                 : answer(1, "", "sbatch: error: " + refuse + "\n"));
  }
  void look_up(const std::string& name, OnEnd on_end) override {
    line("squeue " + name);
    reply(on_end, answer(0, queue));
  }
  void cancel(const std::string& name, const std::vector<std::string>& jobs, bool pending_only,
              OnEnd on_end) override {
    std::string text = "scancel " + name + (pending_only ? " pending" : "");
    for (const std::string& job : jobs) text += " " + job;
    line(text);
    reply(on_end, answer(0, ""));
  }
  void abandon() override { line("abandon"); }

  std::vector<std::string> lines;
  SubmissionCommand last_submission;
  std::string queue, refuse;
  bool hang = false;

 private:
  void line(const std::string& text) {
    if (text != "abandon") {
      EXPECT_FALSE(busy_) << "two commands at a time";
      busy_ = true;
    }
    lines.push_back(text);
  }
  void reply(const OnEnd& on_end, const ChildResult& result) {
    if (hang) return;
    asio::post(io_, [this, on_end, result] {
      busy_ = false;
      on_end(result);
    });
  }
  asio::io_context& io_;
  int next_ = 11;
  bool busy_ = false;
};

struct SatellitePoolTest : testing::Test {
  SatellitePoolTest() : slurm(io) { fs::create_directories(directory); }
  ~SatellitePoolTest() override { fs::remove_all(directory); }

  SatellitePoolOptions options() {
    SatellitePoolOptions result;
    result.facts.name = "af-1-n";
    result.facts.run_id = "1";
    result.facts.run_directory = directory;
    result.seconds_left = [this] { return left; };
    result.jitter = [] { return 0.5; };
    result.now = [this] { return now; };
    return result;
  }
  void poll() {
    io.restart();
    while (io.poll() > 0) {
    }
  }

  asio::io_context io;
  FakeSlurm slurm;
  const fs::path directory =
      fs::path(testing::TempDir()) / ("af-pool-" + std::to_string(::getpid()));
  double left = 3600, now = 0;
  std::vector<std::string> events, said;
  SatellitePool pool{io, slurm, options(),
                     [this](const std::string& name, const nlohmann::json& fields) {
                       events.push_back(name + " " + fields.dump());
                     },
                     [this](const std::string& text) { said.push_back(text); }};
};

TEST_F(SatellitePoolTest, SubmitsWhatIsWantedOneByOne) {
  pool.set_wanted(3);
  poll();
  EXPECT_TRUE(slurm.lines.empty()) << "before start()";
  pool.start();
  EXPECT_TRUE(fs::is_directory(directory / "logs/satellites"));
  poll();
  EXPECT_EQ(slurm.lines, (std::vector<std::string>{"sbatch", "sbatch"}));
  EXPECT_EQ(events.back(), R"(satellite_submitted {"job":"12","name":"af-1-n"})");
  pool.agent_joined("11", "n1");
  poll();
  EXPECT_EQ(slurm.lines.size(), 3u);
  EXPECT_EQ(pool.counted(), 3);
  EXPECT_TRUE(said.empty());
}

TEST_F(SatellitePoolTest, ExcludesANodeThatKillsThem) {
  pool.start();
  pool.set_wanted(1);
  poll();
  pool.agent_joined("11", "n1");
  slurm.queue = "11|FAILED|0:02|n1\n";
  pool.agent_left("11", 2, false);
  poll();
  EXPECT_EQ(slurm.lines, (std::vector<std::string>{"sbatch", "squeue af-1-n", "sbatch"}));
  const auto& argv = slurm.last_submission.argv;
  EXPECT_TRUE(std::ranges::find(argv, "--exclude=n1") != argv.end());
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(SatellitePoolTest, AsksForTheTimeThatIsLeftNow) {
  pool.start();
  left = 100;
  pool.set_wanted(1);
  poll();
  EXPECT_TRUE(slurm.lines.empty()) << "too late for another one";
  left = 630;
  pool.set_wanted(1);
  poll();
  const auto& argv = slurm.last_submission.argv;
  EXPECT_TRUE(std::ranges::find(argv, "--deadline=now+630") != argv.end());
}

TEST_F(SatellitePoolTest, ARefusalIsSaidOnce) {
  slurm.refuse = "Batch job submission failed: Invalid qos specification";
  pool.start();
  pool.set_wanted(2);
  poll();
  pool.set_wanted(3);
  poll();
  EXPECT_EQ(slurm.lines, std::vector<std::string>{"sbatch"});
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(SatellitePoolTest, StopCancelsWhatIsPendingByName) {
  pool.start();
  pool.set_wanted(1);
  bool done = false;
  pool.stop([&] { done = true; });  // sbatch has not answered yet
  EXPECT_FALSE(done);
  poll();
  EXPECT_TRUE(done);
  EXPECT_EQ(slurm.lines, (std::vector<std::string>{"sbatch", "scancel af-1-n pending", "abandon"}));
  pool.set_wanted(5);
  poll();
  EXPECT_EQ(slurm.lines.size(), 3u) << "after stop()";
}

TEST_F(SatellitePoolTest, StopAsksNothingOfSlurmIfNothingWasSubmitted) {
  pool.start();
  bool done = false;
  pool.stop([&] { done = true; });
  poll();
  EXPECT_TRUE(done);
  EXPECT_EQ(slurm.lines, std::vector<std::string>{"abandon"});
}

TEST_F(SatellitePoolTest, StopDoesNotWaitForAControllerThatHangs) {
  pool.start();
  slurm.hang = true;
  pool.set_wanted(1);
  bool done = false;
  pool.stop([&] { done = true; });
  io.restart();
  const auto start = std::chrono::steady_clock::now();
  io.run_for(std::chrono::seconds(60));
  EXPECT_TRUE(done);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace af
