// SPDX-License-Identifier: Apache-2.0
// Validation metrics that are exact over all rows, however these are shared among the ranks.
//
//   using namespace af::train;
//   const auto tested = over_ranks(replicas, MetricSet(Mean(), Accuracy()),
//                                  [&](auto& metrics, int rank, int ranks) {
//     for (int64_t row = rank; row < rows; row += ranks) {
//       const auto [loss, label] = evaluate(row);
//       metrics.template get<Mean>().add(loss);
//       metrics.template get<Accuracy>().add(label == labels[row]);
//     }
//   });
//   callbacks.report({replicas.steps(), epoch, {{"accuracy", tested.get<Accuracy>().value()}}});
//
// Each metric keeps sums (parts()) that are added up over the ranks; its values are computed from
// the sums of all. Counts are exact to 2^53, sums of numbers have no rounding at all (ExactSum):
// the result is the same to the last bit at every number of ranks, also where shares differ in size
// or a rank has none. An average of the ranks' averages is not, which is the usual mistake.
//
// A value without rows behind it is NaN. Not thread-safe. Errors: af::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "af/communicator.h"
#include "af/export.h"
#include "af/train/exact_sum.h"
#include "af/train/metrics.h"

namespace af::train {

// The mean of what is added, each with a weight (of a mean over several rows: how many).
class AF_PUBLIC Mean {
 public:
  void add(double value, double weight = 1);
  double value() const;
  double weight() const;

  std::vector<double> parts() const;
  void set_parts(const std::vector<double>& parts);

 private:
  ExactSum sum_;
  ExactSum weight_;
};

class AF_PUBLIC Accuracy {
 public:
  void add(bool right) { add(right ? 1 : 0, 1); }
  void add(int64_t right, int64_t rows);
  double value() const;
  int64_t right() const { return right_; }
  int64_t rows() const { return rows_; }

  std::vector<double> parts() const;
  void set_parts(const std::vector<double>& parts);

 private:
  int64_t right_ = 0;
  int64_t rows_ = 0;
};

// How often a row of a class was taken for each class; labels from 0.
class AF_PUBLIC ConfusionMatrix {
 public:
  explicit ConfusionMatrix(int64_t classes);
  // Throws af::Error for a class that there is not.
  void add(int64_t label, int64_t predicted);
  int64_t count(int64_t label, int64_t predicted) const;
  int64_t classes() const { return classes_; }

  double accuracy() const;
  double precision(int64_t of_class) const;  // NaN if it was never predicted
  double recall(int64_t of_class) const;     // NaN if there is no row of it
  double f1(int64_t of_class) const;         // 2 right / (rows of it + predictions of it)
  // The mean of f1() over the classes that occur or were predicted, as scikit-learn's "macro".
  double macro_f1() const;

  std::vector<double> parts() const;
  void set_parts(const std::vector<double>& parts);

 private:
  int64_t classes_;
  std::vector<int64_t> counts_;
};

// The area under the ROC curve by exact rank sums (Mann-Whitney; a tie counts a half), not by a
// histogram: every rank gets the scores of all rows, which takes 16 bytes a row.
class AF_PUBLIC RocAuc {
 public:
  // `rows`: of the whole data set, the same on all ranks.
  explicit RocAuc(int64_t rows);
  // `row`: from 0, of the whole data set. Throws af::Error for one that there is not.
  void add(int64_t row, double score, bool positive);
  // NaN if there is only one class, or a score is NaN. Throws af::Error, naming it, for a row that
  // was added more than once or not at all.
  double value() const;

  std::vector<double> parts() const { return parts_; }
  void set_parts(const std::vector<double>& parts);

 private:
  std::vector<double> parts_;  // scores, then marks: 0 not there, kNegative, kPositive
};

// Of predictions p for targets y.
class AF_PUBLIC Regression {
 public:
  void add(double predicted, double target);
  double mean_squared_error() const;
  double mean_absolute_error() const;
  // 1 - sum (p-y)^2 / sum (y-mean)^2; NaN if all targets are the same.
  double r2() const;
  int64_t rows() const { return rows_; }

  std::vector<double> parts() const;
  void set_parts(const std::vector<double>& parts);

 private:
  ExactSum squares_;    // of the errors
  ExactSum absolutes_;  // likewise
  ExactSum targets_;
  ExactSum target_squares_;
  int64_t rows_ = 0;
};

// Several metrics of one pass over the data: one call for all ranks. Each of another type.
template <typename... Metrics>
class MetricSet {
 public:
  explicit MetricSet(Metrics... metrics) : metrics_(std::move(metrics)...) {}

  template <typename Metric>
  Metric& get() {
    return std::get<Metric>(metrics_);
  }
  template <typename Metric>
  const Metric& get() const {
    return std::get<Metric>(metrics_);
  }

  std::vector<double> parts() const {
    std::vector<double> all;
    const auto append = [&](const auto& metric) {
      const auto own = metric.parts();
      all.insert(all.end(), own.begin(), own.end());
    };
    std::apply([&](const auto&... metric) { (append(metric), ...); }, metrics_);
    return all;
  }
  void set_parts(const std::vector<double>& all) {
    auto from = all.begin();
    const auto take = [&](auto& metric) {
      const auto to = from + static_cast<std::ptrdiff_t>(metric.parts().size());
      metric.set_parts(std::vector<double>(from, to));
      from = to;
    };
    std::apply([&](auto&... metric) { (take(metric), ...); }, metrics_);
  }

 private:
  std::tuple<Metrics...> metrics_;
};

// The metric over all rows. Collective. `fill(metric, rank, ranks)` adds the rows of one rank to an
// empty metric. `replicas` is a DataParallel, or has such a sum(); where the world changes
// meanwhile, `fill` is called again with another share.
template <typename Replicas, typename Metric, typename Fill>
Metric over_ranks(Replicas& replicas, Metric empty, Fill&& fill) {
  empty.set_parts(replicas.sum([&](int rank, int ranks) {
    Metric own = empty;
    fill(own, rank, ranks);
    return own.parts();
  }));
  return empty;
}

// The same in a world of a fixed size.
template <typename Metric, typename Fill>
Metric over_ranks(Communicator& world, Metric empty, Fill&& fill) {
  Metric own = empty;
  fill(own, world.rank(), world.world_size());
  empty.set_parts(sum_over_ranks(world, own.parts()));
  return empty;
}

}  // namespace af::train
