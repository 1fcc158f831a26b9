// SPDX-License-Identifier: Apache-2.0
#include "af/train/validation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "common/error.h"
#include "tests/unit/collectives/world.h"

namespace af::train {
namespace {

TEST(Mean, WeighsAndIsNaNWithoutRows) {
  Mean mean;
  EXPECT_TRUE(std::isnan(mean.value()));
  mean.add(std::nan(""), 0);
  EXPECT_TRUE(std::isnan(mean.value()));
  mean.add(1.0, 3);
  mean.add(5.0);
  EXPECT_EQ(mean.value(), 2.0);
  EXPECT_EQ(mean.weight(), 4.0);
  EXPECT_THROW(mean.add(1, -1), Error);
  mean.add(std::nan(""));
  EXPECT_TRUE(std::isnan(mean.value()));
}

TEST(Accuracy, Counts) {
  Accuracy accuracy;
  EXPECT_TRUE(std::isnan(accuracy.value()));
  accuracy.add(true);
  accuracy.add(false);
  accuracy.add(5, 6);
  EXPECT_EQ(accuracy.right(), 6);
  EXPECT_EQ(accuracy.rows(), 8);
  EXPECT_EQ(accuracy.value(), 0.75);
  EXPECT_THROW(accuracy.add(3, 2), Error);
}

TEST(ConfusionMatrix, GivesWhatIsReadFromIt) {
  ConfusionMatrix matrix(3);
  EXPECT_TRUE(std::isnan(matrix.accuracy()));
  EXPECT_TRUE(std::isnan(matrix.macro_f1()));
  // label 0: 4 right, 1 as 1; label 1: 2 as 0, 3 right; no row of 2, never predicted.
  for (int i = 0; i < 4; ++i) matrix.add(0, 0);
  matrix.add(0, 1);
  for (int i = 0; i < 2; ++i) matrix.add(1, 0);
  for (int i = 0; i < 3; ++i) matrix.add(1, 1);
  EXPECT_EQ(matrix.count(1, 0), 2);
  EXPECT_EQ(matrix.accuracy(), 0.7);
  EXPECT_EQ(matrix.precision(0), 4.0 / 6.0);
  EXPECT_EQ(matrix.recall(0), 0.8);
  EXPECT_EQ(matrix.f1(0), 8.0 / 11.0);
  EXPECT_EQ(matrix.f1(1), 6.0 / 9.0);
  EXPECT_TRUE(std::isnan(matrix.precision(2)));
  EXPECT_TRUE(std::isnan(matrix.recall(2)));
  EXPECT_EQ(matrix.macro_f1(), (8.0 / 11.0 + 6.0 / 9.0) / 2);
  for (const auto& [label, predicted] : {std::pair<int, int>{3, 0}, {0, 3}, {-1, 0}, {0, -1}})
    EXPECT_THROW(matrix.add(label, predicted), Error);
  EXPECT_THROW(ConfusionMatrix(0), Error);
}

TEST(RocAuc, IsTheShareOfOrderedPairs) {
  const double nan = std::nan("");
  const struct {
    const char* what;
    std::vector<double> scores;
    std::vector<bool> positive;
    double auc;
  } cases[] = {
      {"all in order", {0.1, 0.2, 0.8, 0.9}, {false, false, true, true}, 1},
      {"all the wrong way round", {0.1, 0.2, 0.8, 0.9}, {true, true, false, false}, 0},
      {"all tied", {5, 5, 5, 5, 5}, {true, false, true, false, false}, 0.5},
      {"the textbook's", {0.1, 0.4, 0.35, 0.8}, {false, false, true, true}, 0.75},
      {"a tie across the classes", {1, 2, 2, 3}, {false, true, false, true}, 0.875},
      {"infinities are scores", {-INFINITY, INFINITY}, {false, true}, 1},
      {"no negative one", {1, 2}, {true, true}, nan},
      {"no row", {}, {}, nan},
      {"a NaN", {1, nan, 2}, {true, false, false}, nan},
  };
  for (const auto& one : cases) {
    RocAuc auc(static_cast<int64_t>(one.scores.size()));
    for (std::size_t row = 0; row < one.scores.size(); ++row)
      auc.add(static_cast<int64_t>(row), one.scores[row], one.positive[row]);
    if (std::isnan(one.auc))
      EXPECT_TRUE(std::isnan(auc.value())) << one.what;
    else
      EXPECT_EQ(auc.value(), one.auc) << one.what;
  }
}

TEST(RocAuc, EveryRowComesOnce) {
  RocAuc auc(3);
  auc.add(0, 1, true);
  auc.add(1, 1, false);
  EXPECT_THROW(auc.add(3, 1, true), Error);
  EXPECT_THROW(auc.add(-1, 1, true), Error);
  const auto text = [&] {
    try {
      (void)auc.value();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(text().find("row 2 of 3 was not added"), std::string::npos) << text();
  auc.add(2, 1, false);
  EXPECT_EQ(text(), "");
  for (const bool positive : {false, true}) {
    RocAuc twice(1);
    twice.add(0, 1, positive);
    twice.add(0, 1, false);
    EXPECT_THROW((void)twice.value(), Error);
  }
}

TEST(Regression, OfAFewRows) {
  Regression regression;
  EXPECT_TRUE(std::isnan(regression.mean_squared_error()));
  EXPECT_TRUE(std::isnan(regression.r2()));
  const double predicted[] = {2.5, 0.0, 2, 8};
  const double target[] = {3, -0.5, 2, 7};
  for (int i = 0; i < 4; ++i) regression.add(predicted[i], target[i]);
  EXPECT_EQ(regression.mean_squared_error(), 0.375);
  EXPECT_EQ(regression.mean_absolute_error(), 0.5);
  EXPECT_NEAR(regression.r2(), 0.9486081370449679, 1e-15);
  EXPECT_EQ(regression.rows(), 4);
}

TEST(Regression, R2SurvivesALargeMean) {
  Regression near;
  Regression far;
  for (int i = 0; i < 1000; ++i) {
    const double y = (i * 37) % 101;
    const double p = y + ((i % 3) - 1);
    near.add(p, y);
    far.add(p + 0x1p50, y + 0x1p50);  // the squares' plain sums would have no digit of it left
  }
  EXPECT_EQ(far.r2(), near.r2());
}

TEST(Regression, EqualTargetsHaveNoR2) {
  for (const double y : {0.0, 0.1, 1e9 + 0.3, -7.7e-5})
    for (const int rows : {1, 3, 7, 1000}) {
      Regression regression;
      for (int i = 0; i < rows; ++i) regression.add(y + 1, y);
      EXPECT_TRUE(std::isnan(regression.r2())) << y << " " << rows << " " << regression.r2();
    }
}

// Of rows with numbers that do not add up without rounding.
struct Row {
  double score;
  double target;
  int64_t label;
  int64_t predicted;
};
std::vector<Row> rows_of_a_data_set(int count) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  std::vector<Row> rows;
  for (int i = 0; i < count; ++i)
    rows.push_back({std::round(normal(random) * 100) / 100, normal(random) * 1e6 + 0.1,
                    int64_t(random() % 3), int64_t(random() % 3)});
  return rows;
}

using All = MetricSet<Mean, Accuracy, ConfusionMatrix, RocAuc, Regression>;

std::vector<double> values_of(const All& all) {
  std::vector<double> values = {all.get<Mean>().value(),
                                all.get<Accuracy>().value(),
                                all.get<ConfusionMatrix>().macro_f1(),
                                all.get<RocAuc>().value(),
                                all.get<Regression>().mean_squared_error(),
                                all.get<Regression>().mean_absolute_error(),
                                all.get<Regression>().r2()};
  for (int label = 0; label < 3; ++label)
    for (int predicted = 0; predicted < 3; ++predicted)
      values.push_back(double(all.get<ConfusionMatrix>().count(label, predicted)));
  return values;
}

TEST(OverRanks, TheSameToTheLastBitAtEveryWorldSizeWhateverTheShares) {
  const auto rows = rows_of_a_data_set(101);
  const auto count = static_cast<int64_t>(rows.size());
  const auto fill = [&](All& all, int rank, int ranks) {
    for (int64_t i = 0; i < count; ++i) {
      // Uneven: the last rank has none, where there are several; the first has most.
      if ((ranks == 1 ? 0 : std::min<int64_t>(i * i % 7, ranks - 2)) != rank) continue;
      const Row& row = rows[static_cast<std::size_t>(i)];
      all.get<Mean>().add(row.target, row.score * row.score);
      all.get<Accuracy>().add(row.label == row.predicted);
      all.get<ConfusionMatrix>().add(row.label, row.predicted);
      all.get<RocAuc>().add(i, row.score, row.label == 1);
      all.get<Regression>().add(row.target + row.score, row.target);
    }
  };
  const All empty(Mean(), Accuracy(), ConfusionMatrix(3), RocAuc(count), Regression());
  All whole = empty;
  fill(whole, 0, 1);
  for (int ranks = 1; ranks <= 4; ++ranks)
    test::with_threads(test::one_node(ranks), [&](Communicator& world) {
      EXPECT_EQ(values_of(over_ranks(world, empty, fill)), values_of(whole)) << ranks;
    });
}

TEST(OverRanks, ThroughAnObjectWithASum) {
  struct Replicas {  // as DataParallel::sum, where the world has changed in between
    std::vector<double> sum(const std::function<std::vector<double>(int, int)>& part) {
      (void)part(0, 2);
      return part(0, 1);
    }
  } replicas;
  const auto accuracy = over_ranks(replicas, Accuracy(), [](Accuracy& own, int rank, int ranks) {
    for (int row = rank; row < 10; row += ranks) own.add(row % 5 != 0);
  });
  EXPECT_EQ(accuracy.rows(), 10);
  EXPECT_EQ(accuracy.right(), 8);
}

TEST(MetricSet, SumsOfOtherMetricsAreRefused) {
  EXPECT_THROW(Mean().set_parts({1, 2}), Error);
  EXPECT_THROW(Accuracy().set_parts({1}), Error);
  EXPECT_THROW(ConfusionMatrix(2).set_parts({1}), Error);
  EXPECT_THROW(RocAuc(2).set_parts({1}), Error);
  EXPECT_THROW(Regression().set_parts({1}), Error);
}

}  // namespace
}  // namespace af::train
