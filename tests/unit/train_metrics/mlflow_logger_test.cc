// SPDX-License-Identifier: Apache-2.0
#include "af/train/mlflow_logger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_metrics/fake_mlflow.h"

namespace af::train {
namespace {

using std::chrono::milliseconds;
using test::FakeMlflow;
using test::HttpResponse;

MlflowOptions options_for(const std::string& uri, const std::filesystem::path& spool) {
  MlflowOptions options;
  options.tracking_uri = uri;
  options.experiment = "digits";
  options.spool = spool;
  options.gather = milliseconds(1);
  options.retry = milliseconds(5);
  options.most_retry = milliseconds(20);
  options.patience = std::chrono::seconds(60);
  return options;
}

// A training as a logger sees it. What was said on stderr is at hand when it is over.
class Training {
 public:
  explicit Training(const MlflowOptions& options, int rank = 0) {
    testing::internal::CaptureStderr();
    callbacks_.add(mlflow_logger(options));
    callbacks_.start({rank, 2, 0});
  }
  void report(int64_t step, double loss = 0.5) { callbacks_.report({step, 0, {{"loss", loss}}}); }
  std::string finish(EndInfo::How how = EndInfo::How::finished) {
    callbacks_.end({how, 0});
    return testing::internal::GetCapturedStderr();
  }
  std::string fail() {
    callbacks_.exception("no more rows");
    return testing::internal::GetCapturedStderr();
  }

 private:
  Callbacks callbacks_;
};

std::vector<int64_t> steps_of(const FakeMlflow::Run& run) {
  std::vector<int64_t> steps;
  for (const auto& metric : run.metrics) steps.push_back(metric["step"]);
  return steps;
}

std::vector<int64_t> up_to(int64_t last) {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= last; ++step) steps.push_back(step);
  return steps;
}

// Files of spools; run.json stays.
std::size_t spools_in(const std::filesystem::path& directory) {
  std::size_t count = 0;
  if (!std::filesystem::exists(directory)) return 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    count += entry.path().filename().string().starts_with("spool-") ? 1 : 0;
  return count;
}

TEST(MlflowLogger, MakesARunAndFillsIt) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  MlflowOptions options = options_for(server.uri(), directory.path());
  options.params = {{"lr", "0.1"}};
  options.tags = {{"who", "ada"}};
  options.token = "t0ken";
  Training training(options);
  for (int64_t step = 1; step <= 30; ++step) training.report(step, step == 7 ? NAN : 0.5);
  EXPECT_EQ(training.finish(), "");
  ASSERT_EQ(server.runs().size(), 1U);
  const auto run = server.runs()[0];
  EXPECT_EQ(run.experiment, "e-digits");
  EXPECT_EQ(run.status, "FINISHED");
  EXPECT_EQ(run.params, (std::map<std::string, std::string>{{"lr", "0.1"}}));
  EXPECT_EQ(run.tags.at("who"), "ada");
  EXPECT_EQ(steps_of(run), up_to(30));
  EXPECT_EQ(run.metrics[6]["value"], "NaN");
  for (const auto& request : server.requests())
    EXPECT_EQ(request.headers.at("authorization"), "Bearer t0ken");
  EXPECT_EQ(spools_in(directory.path()), 0U);
}

TEST(MlflowLogger, OtherRanksSayNothing) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  Training training(options_for(server.uri(), directory / "spool"), 1);
  training.report(1);
  EXPECT_EQ(training.finish(), "");
  EXPECT_TRUE(server.requests().empty());
  EXPECT_FALSE(std::filesystem::exists(directory / "spool"));
}

TEST(MlflowLogger, HowATrainingEnded) {
  const struct {
    const char* status;
    std::function<void(Training&)> end;
  } cases[] = {{"FINISHED", [](Training& t) { t.finish(); }},
               {"FAILED", [](Training& t) { t.fail(); }},
               {"RUNNING", [](Training& t) { t.finish(EndInfo::How::leaving); }}};
  for (const auto& one : cases) {
    const TemporaryDirectory directory;
    FakeMlflow server;
    Training training(options_for(server.uri(), directory.path()));
    one.end(training);
    EXPECT_EQ(server.runs().at(0).status, one.status);
  }
}

TEST(MlflowLogger, BasicAuthenticationAndAnExperimentsIdAndAGivenRun) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  {  // a run that is there
    Training other(options_for(server.uri(), directory / "other"));
    other.finish();
  }
  MlflowOptions options = options_for(server.uri(), directory / "spool");
  options.username = "ada";
  options.password = "s3cret";
  options.run_id = "run-0";
  Training training(options);
  training.report(1);
  EXPECT_EQ(training.finish(), "");
  EXPECT_EQ(server.runs().size(), 1U);
  EXPECT_EQ(steps_of(server.runs()[0]), up_to(1));
  EXPECT_EQ(server.requests().back().headers.at("authorization"), "Basic YWRhOnMzY3JldA==");
  MlflowOptions by_id = options_for(server.uri(), directory / "by-id");
  by_id.experiment_id = "42";
  Training third(by_id);
  third.finish();
  EXPECT_EQ(server.runs().at(1).experiment, "42");
}

// Errors that pass: each costs a line on stderr and nothing else.
TEST(MlflowLogger, FailuresThatPassLoseAndRepeatNothing) {
  const HttpResponse break_off{200, "", "", true};
  const HttpResponse slow_down{429, "{}", "Retry-After: 0\r\n"};
  const struct {
    const char* what;
    std::vector<FakeMlflow::Failure> failures;
  } cases[] = {
      {"500 twice", {{{500, "oops"}}, {{500, "oops"}}}},
      {"429", {{slow_down}}},
      {"401 until the token is renewed", {{{401, ""}}}},
      {"a proxy's page", {{{200, "<html>"}}}},
      {"broken off", {{break_off}}},
  };
  for (const auto& one : cases) {
    const TemporaryDirectory directory;
    FakeMlflow server;
    server.fail_next(one.failures);
    Training training(options_for(server.uri(), directory.path()));
    for (int64_t step = 1; step <= 20; ++step) training.report(step);
    const std::string said = training.finish();
    ASSERT_EQ(server.runs().size(), 1U) << one.what;
    EXPECT_EQ(steps_of(server.runs()[0]), up_to(20)) << one.what;
    EXPECT_EQ(server.runs()[0].status, "FINISHED") << one.what;
    EXPECT_NE(said.find("does not take values now: "), std::string::npos) << one.what << said;
    EXPECT_NE(said.find("is there again"), std::string::npos) << one.what << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << one.what << said;
    EXPECT_EQ(spools_in(directory.path()), 0U);
  }
}

TEST(MlflowLogger, ARunWhoseIdWasLostIsFoundAgain) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  HttpResponse break_off;
  break_off.break_off = true;
  const HttpResponse no_experiment{404, R"({"error_code":"RESOURCE_DOES_NOT_EXIST"})"};
  server.fail_next({{no_experiment}, {{200, R"({"experiment_id":"7"})"}}, {break_off, true}});
  Training training(options_for(server.uri(), directory.path()));
  training.report(1);
  training.finish();
  ASSERT_EQ(server.runs().size(), 1U);
  EXPECT_EQ(steps_of(server.runs()[0]), up_to(1));
}

TEST(MlflowLogger, ABatchThatWasTakenWithoutAnAnswerIsThereOnce) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  Training training(options_for(server.uri(), directory.path()));
  training.report(1);
  ASSERT_TRUE(server.await_metrics(1));
  HttpResponse break_off;
  break_off.break_off = true;
  server.fail_next({{break_off, true}});
  training.report(2);
  training.finish();
  EXPECT_EQ(steps_of(server.runs()[0]), up_to(2));
}

TEST(MlflowLogger, AServerThatComesLaterGetsEverything) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  server.stop();
  Training training(options_for(server.uri(), directory.path()));
  for (int64_t step = 1; step <= 3000; ++step) training.report(step);
  server.start();
  const std::string said = training.finish();
  EXPECT_EQ(steps_of(server.runs().at(0)), up_to(3000));
  EXPECT_EQ(server.runs()[0].status, "FINISHED");
}

TEST(MlflowLogger, WhatIsNotSentIsSentByTheNextStartIntoTheSameRun) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  MlflowOptions options = options_for(server.uri(), directory.path());
  {
    options.patience = milliseconds(10);
    Training first(options);
    first.report(1);
    ASSERT_TRUE(server.await_metrics(1));
    server.stop();
    first.report(2);
    first.report(3);
    const std::string said = first.fail();
    EXPECT_NE(said.find("the rest is in " + directory.path().string()), std::string::npos) << said;
    EXPECT_EQ(spools_in(directory.path()), 2U);
  }
  server.start();
  Training second(options_for(server.uri(), directory.path()));
  second.report(4);
  second.finish();
  ASSERT_EQ(server.runs().size(), 1U);
  EXPECT_EQ(steps_of(server.runs()[0]), up_to(4));
  EXPECT_EQ(server.runs()[0].status, "FINISHED");
  EXPECT_EQ(spools_in(directory.path()), 0U);
}

TEST(MlflowLogger, AServerThatHangsDelaysTheEndByThePatienceOnly) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  HttpResponse hang;
  hang.hang = true;
  server.fail_next({{hang}, {hang}, {hang}, {hang}, {hang}});
  MlflowOptions options = options_for(server.uri(), directory.path());
  options.request_timeout = std::chrono::minutes(10);
  options.patience = milliseconds(50);
  Training training(options);
  training.report(1);
  ASSERT_TRUE(server.await_requests(1));
  const std::string said = training.finish();
  EXPECT_NE(said.find("has not taken all (no answer until the end)"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_EQ(spools_in(directory.path()), 1U);
}

TEST(MlflowLogger, ARequestThatTakesTooLongIsGivenUpAndSentAgain) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  HttpResponse hang;
  hang.hang = true;
  server.fail_next({{hang}});
  MlflowOptions options = options_for(server.uri(), directory.path());
  options.request_timeout = milliseconds(50);
  Training training(options);
  training.report(1);
  training.finish();
  EXPECT_EQ(steps_of(server.runs().at(0)), up_to(1));
}

TEST(MlflowLogger, WhatTheServerRefusesIsLeftOutAndSaid) {
  const TemporaryDirectory directory;
  FakeMlflow server;
  server.refuse_metric("bad");
  MlflowOptions options = options_for(server.uri(), directory.path());
  options.params = {{"lr", "0.1"}};
  {
    Training first(options);
    first.finish();
  }
  options.params = {{"lr", "0.2"}, {"new", "1"}};  // a parameter does not change
  testing::internal::CaptureStderr();
  Callbacks callbacks;
  callbacks.add(mlflow_logger(options));
  callbacks.start({0, 1, 0});
  for (int64_t step = 1; step <= 9; ++step)
    callbacks.report({step, 0, {{step == 5 ? "bad" : "loss", 1.0}}});
  callbacks.end({});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(steps_of(server.runs().at(0)), (std::vector<int64_t>{1, 2, 3, 4, 6, 7, 8, 9}));
  EXPECT_EQ(server.runs()[0].params,
            (std::map<std::string, std::string>{{"lr", "0.1"}, {"new", "1"}}));
  EXPECT_NE(said.find("does not take bad: "), std::string::npos) << said;
  EXPECT_NE(said.find("does not take lr: "), std::string::npos) << said;
}

TEST(MlflowLogger, ARunThatIsGoneIsNotAskedForAgainAndLosesNothing) {
  for (const bool deleted : {true, false}) {
    const TemporaryDirectory directory;
    FakeMlflow server;
    MlflowOptions options = options_for(server.uri(), directory.path());
    if (!deleted) options.run_id = "nobody";
    Training training(options);
    training.report(1);
    if (deleted) {
      ASSERT_TRUE(server.await_metrics(1));
      server.delete_run(0);
      training.report(2);
    }
    const std::string said = training.finish();
    EXPECT_NE(said.find("takes nothing: "), std::string::npos) << said;
    EXPECT_EQ(spools_in(directory.path()), deleted ? 2U : 1U);
  }
}

TEST(MlflowLogger, WithoutADiskForTheSpoolItStillSends) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "no directory";
  FakeMlflow server;
  Training training(options_for(server.uri(), directory / "file"));
  training.report(1);
  const std::string said = training.finish();
  EXPECT_EQ(steps_of(server.runs().at(0)), up_to(1));
  EXPECT_NE(said.find("has no spool: "), std::string::npos) << said;
}

TEST(MlflowLogger, AUriThatIsNotHttpIsSaidOnceAndTheTrainingGoesOn) {
  const TemporaryDirectory directory;
  for (const char* uri : {"sqlite:///x.db", "databricks", "./mlruns"}) {
    Training training(options_for(uri, directory.path()));
    training.report(1);
    const std::string said = training.finish();
    EXPECT_NE(said.find(uri), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

TEST(MlflowLogger, IsSetUpFromMlflowsVariables) {
  const std::pair<const char*, const char*> variables[] = {
      {"MLFLOW_TRACKING_URI", "https://h/"},
      {"MLFLOW_RUN_ID", "r"},
      {"MLFLOW_EXPERIMENT_NAME", "x"},
      {"MLFLOW_TRACKING_USERNAME", "ada"},
      {"MLFLOW_TRACKING_PASSWORD", "p"},
      {"MLFLOW_TRACKING_INSECURE_TLS", "true"},
      {"MLFLOW_TRACKING_SERVER_CERT_PATH", "/ca.pem"},
      {"AF_RUN_ID", "job-7"},
      {"AF_RUN_DIR", "/runs/7"}};
  EXPECT_EQ(mlflow_logger_from_environment(), nullptr);
  for (const auto& [name, value] : variables) ::setenv(name, value, 1);
  const MlflowOptions options = mlflow_options_from_environment();
  EXPECT_NE(mlflow_logger_from_environment(), nullptr);
  for (const auto& [name, value] : variables) ::unsetenv(name);
  EXPECT_EQ(options.tracking_uri, "https://h/");
  EXPECT_EQ(options.run_id, "r");
  EXPECT_EQ(options.experiment, "x");
  EXPECT_EQ(options.run_name, "job-7");
  EXPECT_EQ(options.username, "ada");
  EXPECT_EQ(options.password, "p");
  EXPECT_TRUE(options.insecure_tls);
  EXPECT_EQ(options.ca_file, "/ca.pem");
  EXPECT_EQ(options.spool, "/runs/7/mlflow");
}

}  // namespace
}  // namespace af::train
