// SPDX-License-Identifier: Apache-2.0
#include "train/metrics/mlflow_item.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "train/metrics/mlflow_client.h"

namespace af::train {
namespace {

using nlohmann::json;
using Kind = MlflowItem::Kind;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

MlflowItem metric(const std::string& key, double value, int64_t step = 0) {
  return {Kind::metric, key, "", value, 1700000000123, step};
}

TEST(MlflowItem, KeysAreThoseThatTheServerTakes) {
  const struct {
    std::string name;
    std::string key;
  } cases[] = {{"train/loss", "train/loss"},
               {"top-1 acc.:x_Y", "top-1 acc.:x_Y"},
               {"loss (%)", "loss ___"},
               {"größe", "gr____e"},
               {"", "_"},
               {std::string(300, 'm'), std::string(250, 'm')}};
  for (const auto& one : cases) EXPECT_EQ(mlflow_key(one.name), one.key);
}

TEST(MlflowItem, ASpoolLineReadsBack) {
  const MlflowItem items[] = {metric("loss", 0.1, 7),
                              metric("loss", -1e-300, -1),
                              metric("loss", kInfinity),
                              metric("loss", -kInfinity),
                              {Kind::param, "lr", "1e-3 \"x\"\n"},
                              {Kind::tag, "mlflow.user", "ada"},
                              {Kind::status, "", "FINISHED", 0, 1700000000123}};
  for (const MlflowItem& item : items) {
    const std::string line = spool_line(item);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    const auto back = parse_spool_line(line);
    ASSERT_TRUE(back) << line;
    EXPECT_EQ(*back, item) << line;
  }
  EXPECT_TRUE(std::isnan(parse_spool_line(spool_line(metric("x", std::nan(""))))->value));
  for (const char* line : {"", "{", "[]", "{}", "{\"metric\":3}", "{\"metric\":{\"key\":\"x\"}}",
                           "{\"other\":{}}", "{\"param\":{\"key\":\"x\",\"value\":3}}"})
    EXPECT_FALSE(parse_spool_line(line)) << line;
}

TEST(MlflowItem, ABatchIsWhatTheApiWants) {
  const std::string body = log_batch_body("r1", {metric("loss", 0.5, 3),
                                                 metric("loss", std::nan(""), 4),
                                                 {Kind::param, "lr", "0.1"},
                                                 {Kind::tag, "t", "\xff"}});
  EXPECT_EQ(json::parse(body), json::parse(R"({"run_id":"r1",
              "metrics":[{"key":"loss","value":0.5,"timestamp":1700000000123,"step":3},
                         {"key":"loss","value":"NaN","timestamp":1700000000123,"step":4}],
              "params":[{"key":"lr","value":"0.1"}],
              "tags":[{"key":"t","value":"\ufffd"}]})"));
}

TEST(MlflowItem, ABatchKeepsTheServersLimits) {
  const auto many = [](std::size_t count, const MlflowItem& item) {
    return std::vector<MlflowItem>(count, item);
  };
  const auto with = [](std::vector<MlflowItem> items, const MlflowItem& last) {
    items.push_back(last);
    return items;
  };
  const MlflowItem loss = metric("loss", 1);
  const MlflowItem param{Kind::param, "p", "v"};
  const MlflowItem status{Kind::status, "", "FINISHED"};
  const struct {
    const char* what;
    std::vector<MlflowItem> items;
    std::size_t size;
  } cases[] = {
      {"nothing", {}, 0},
      {"one", {loss}, 1},
      {"1000 metrics", many(1500, loss), 1000},
      {"100 params", many(150, param), 100},
      {"a status alone", {status, loss}, 1},
      {"up to a status", with(many(5, loss), status), 5},
      {"1 MB", many(1000, {Kind::tag, "t", std::string(4000, 'x')}), 100},
      {"1 MB of params", many(100, {Kind::param, "p", std::string(20000, 'x')}), 100},
      {"params behind metrics", with(many(1000, loss), param), 1000},
  };
  for (const auto& one : cases) EXPECT_EQ(batch_size(one.items), one.size) << one.what;
  // Bytes: 1000 metrics of the longest keys stay below what the server takes.
  EXPECT_LT(log_batch_body("r", many(1000, metric(std::string(250, 'k'), 1.0 / 3))).size(),
            1'000'000U);
}

TEST(MlflowAnswer, MeansWhatTheServerSays) {
  using Answer = MlflowAnswer::Kind;
  const std::string missing =
      R"({"error_code":"RESOURCE_DOES_NOT_EXIST","message":"Run not found"})";
  const std::string invalid = R"({"error_code":"INVALID_PARAMETER_VALUE","message":"no\nmore"})";
  const struct {
    HttpReply reply;
    Answer kind;
    const char* why;
  } cases[] = {
      {{200, "", "{}"}, Answer::done, ""},
      {{200, "", "<html>please log in</html>"}, Answer::later, "not as MLflow does"},
      {{0, "Connection refused", ""}, Answer::later, "Connection refused"},
      {{302, "", ""}, Answer::later, "HTTP 302"},
      {{400, "", invalid}, Answer::refused, "INVALID_PARAMETER_VALUE: no"},
      {{401, "", ""}, Answer::later, "MLFLOW_TRACKING_TOKEN"},
      {{403, "", ""}, Answer::later, "MLFLOW_TRACKING_TOKEN"},
      {{404, "", missing}, Answer::missing, "Run not found"},
      {{404, "", "not found"}, Answer::later, "HTTP 404"},
      {{413, "", ""}, Answer::refused, "HTTP 413"},
      {{429, "", "", std::chrono::seconds(7)}, Answer::later, "HTTP 429"},
      {{500, "", invalid}, Answer::later, "HTTP 500"},
      {{503, "", ""}, Answer::later, "HTTP 503"},
  };
  for (const auto& one : cases) {
    const MlflowAnswer answer = meaning_of(one.reply);
    EXPECT_EQ(answer.kind, one.kind) << one.reply.status << one.reply.body;
    EXPECT_NE(answer.why.find(one.why), std::string::npos) << answer.why;
    EXPECT_EQ(answer.why.find('\n'), std::string::npos) << answer.why;
    EXPECT_EQ(answer.wait, one.reply.retry_after);
  }
}

TEST(MlflowUri, IsShownWithoutCredentials) {
  EXPECT_EQ(without_credentials("https://ada:s3cret@h:1/x@y"), "https://h:1/x@y");
  EXPECT_EQ(without_credentials("http://h:1"), "http://h:1");
  EXPECT_EQ(without_credentials("sqlite"), "sqlite");
}

}  // namespace
}  // namespace af::train
