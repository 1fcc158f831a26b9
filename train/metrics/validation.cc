// SPDX-License-Identifier: Apache-2.0
#include "af/train/validation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/error.h"

namespace af::train {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double ratio(int64_t part, int64_t whole) {
  return whole == 0 ? kNaN : static_cast<double>(part) / static_cast<double>(whole);
}

void check_size(const char* of, std::size_t got, std::size_t wanted) {
  if (got != wanted)
    throw Error::format("{}: sums of {} values, not {}: all ranks must use the same metrics", of,
                        got, wanted);
}

// Parts of several, one after the other.
class Taker {
 public:
  explicit Taker(const std::vector<double>& parts) : from_(parts.begin()) {}
  ExactSum sum() {
    const auto to = from_ + static_cast<std::ptrdiff_t>(ExactSum::parts_count());
    ExactSum taken;
    taken.set_parts({from_, to});
    from_ = to;
    return taken;
  }
  int64_t count() { return static_cast<int64_t>(*from_++); }

 private:
  std::vector<double>::const_iterator from_;
};

void append(std::vector<double>& to, const ExactSum& sum) {
  const auto parts = sum.parts();
  to.insert(to.end(), parts.begin(), parts.end());
}

}  // namespace

// Mean -------------------------------------------------------------------------------------------

void Mean::add(double value, double weight) {
  if (weight < 0) throw Error::format("a weight of {}", weight);
  if (weight == 0) return;  // the mean over no row may be NaN
  sum_.add_product(value, weight);
  weight_.add(weight);
}

double Mean::value() const {
  return weight() == 0 ? kNaN : sum_.value() / weight();
}
double Mean::weight() const {
  return weight_.value();
}

std::vector<double> Mean::parts() const {
  auto all = sum_.parts();
  append(all, weight_);
  return all;
}

void Mean::set_parts(const std::vector<double>& parts) {
  check_size("Mean", parts.size(), 2 * ExactSum::parts_count());
  Taker taker(parts);
  sum_ = taker.sum();
  weight_ = taker.sum();
}

// Accuracy ---------------------------------------------------------------------------------------

void Accuracy::add(int64_t right, int64_t rows) {
  if (right < 0 || right > rows) throw Error::format("{} right of {} rows", right, rows);
  right_ += right;
  rows_ += rows;
}

double Accuracy::value() const {
  return ratio(right_, rows_);
}

std::vector<double> Accuracy::parts() const {
  return {static_cast<double>(right_), static_cast<double>(rows_)};
}

void Accuracy::set_parts(const std::vector<double>& parts) {
  check_size("Accuracy", parts.size(), 2);
  right_ = static_cast<int64_t>(parts[0]);
  rows_ = static_cast<int64_t>(parts[1]);
}

// Confusion matrix -------------------------------------------------------------------------------

ConfusionMatrix::ConfusionMatrix(int64_t classes) : classes_(classes) {
  if (classes < 1) throw Error::format("a confusion matrix of {} classes", classes);
  counts_.resize(static_cast<std::size_t>(classes * classes));
}

void ConfusionMatrix::add(int64_t label, int64_t predicted) {
  for (const int64_t one : {label, predicted})
    if (one < 0 || one >= classes_)
      throw Error::format("class {} of {}: they are numbered from 0", one, classes_);
  ++counts_[static_cast<std::size_t>(label * classes_ + predicted)];
}

int64_t ConfusionMatrix::count(int64_t label, int64_t predicted) const {
  return counts_.at(static_cast<std::size_t>(label * classes_ + predicted));
}

namespace {

struct OfClass {
  int64_t right = 0;
  int64_t rows = 0;
  int64_t predictions = 0;
};

OfClass counts_of(const ConfusionMatrix& matrix, int64_t one) {
  OfClass counts{matrix.count(one, one)};
  for (int64_t other = 0; other < matrix.classes(); ++other) {
    counts.rows += matrix.count(one, other);
    counts.predictions += matrix.count(other, one);
  }
  return counts;
}

}  // namespace

double ConfusionMatrix::accuracy() const {
  int64_t right = 0;
  for (int64_t one = 0; one < classes_; ++one) right += count(one, one);
  return ratio(right, std::accumulate(counts_.begin(), counts_.end(), int64_t{0}));
}

double ConfusionMatrix::precision(int64_t of_class) const {
  const OfClass counts = counts_of(*this, of_class);
  return ratio(counts.right, counts.predictions);
}

double ConfusionMatrix::recall(int64_t of_class) const {
  const OfClass counts = counts_of(*this, of_class);
  return ratio(counts.right, counts.rows);
}

double ConfusionMatrix::f1(int64_t of_class) const {
  const OfClass counts = counts_of(*this, of_class);
  return ratio(2 * counts.right, counts.rows + counts.predictions);
}

double ConfusionMatrix::macro_f1() const {
  double sum = 0;
  int64_t present = 0;
  for (int64_t one = 0; one < classes_; ++one) {
    const double own = f1(one);
    if (std::isnan(own)) continue;
    sum += own;
    ++present;
  }
  return present == 0 ? kNaN : sum / static_cast<double>(present);
}

std::vector<double> ConfusionMatrix::parts() const {
  return {counts_.begin(), counts_.end()};
}

void ConfusionMatrix::set_parts(const std::vector<double>& parts) {
  check_size("ConfusionMatrix", parts.size(), counts_.size());
  std::transform(parts.begin(), parts.end(), counts_.begin(),
                 [](double count) { return static_cast<int64_t>(count); });
}

// Area under the ROC curve -----------------------------------------------------------------------

namespace {
// A row that two ranks have added has the sum of two marks, which is neither.
constexpr double kNegative = 1;
constexpr double kPositive = 1024;

struct Scored {
  double score;
  bool positive;
};

// Twice the number of pairs of a positive and a negative row in which the positive one has the
// higher score, ties counting a half: an integer.
int64_t twice_ordered_pairs(std::vector<Scored> rows) {
  std::sort(rows.begin(), rows.end(),
            [](const Scored& a, const Scored& b) { return a.score < b.score; });
  int64_t twice = 0;
  int64_t negatives_below = 0;
  for (std::size_t i = 0; i < rows.size();) {
    int64_t positives = 0;
    int64_t negatives = 0;
    for (const double score = rows[i].score; i < rows.size() && rows[i].score == score; ++i)
      ++(rows[i].positive ? positives : negatives);
    twice += positives * (2 * negatives_below + negatives);
    negatives_below += negatives;
  }
  return twice;
}

}  // namespace

RocAuc::RocAuc(int64_t rows) {
  if (rows < 0 || rows > int64_t{1} << 31) throw Error::format("RocAuc of {} rows", rows);
  parts_.resize(2 * static_cast<std::size_t>(rows));
}

void RocAuc::add(int64_t row, double score, bool positive) {
  const std::size_t rows = parts_.size() / 2;
  if (row < 0 || static_cast<std::size_t>(row) >= rows)
    throw Error::format("RocAuc: row {} of {}", row, rows);
  parts_[static_cast<std::size_t>(row)] += score;
  parts_[rows + static_cast<std::size_t>(row)] += positive ? kPositive : kNegative;
}

double RocAuc::value() const {
  const std::size_t rows = parts_.size() / 2;
  std::vector<Scored> scored;
  scored.reserve(rows);
  int64_t positives = 0;
  bool nan = false;
  for (std::size_t row = 0; row < rows; ++row) {
    const double mark = parts_[rows + row];
    if (mark != kNegative && mark != kPositive)
      throw Error::format("RocAuc: row {} of {} was {}: each belongs to one rank", row, rows,
                          mark == 0 ? "not added by any rank" : "added more than once");
    scored.push_back({parts_[row], mark == kPositive});
    positives += mark == kPositive ? 1 : 0;
    nan = nan || std::isnan(parts_[row]);
  }
  const int64_t pairs = positives * (static_cast<int64_t>(rows) - positives);
  if (nan || pairs == 0) return kNaN;
  return static_cast<double>(twice_ordered_pairs(std::move(scored))) /
         (2 * static_cast<double>(pairs));
}

void RocAuc::set_parts(const std::vector<double>& parts) {
  check_size("RocAuc", parts.size(), parts_.size());
  parts_ = parts;
}

// Regression -------------------------------------------------------------------------------------

void Regression::add(double predicted, double target) {
  const double error = predicted - target;
  squares_.add_product(error, error);
  absolutes_.add(std::abs(error));
  targets_.add(target);
  target_squares_.add_product(target, target);
  ++rows_;
}

double Regression::mean_squared_error() const {
  return rows_ == 0 ? kNaN : squares_.value() / static_cast<double>(rows_);
}
double Regression::mean_absolute_error() const {
  return rows_ == 0 ? kNaN : absolutes_.value() / static_cast<double>(rows_);
}

double Regression::r2() const {
  if (rows_ == 0) return kNaN;
  // n sum (y-mean)^2 = n sum y^2 - (sum y)^2, nearly all of which cancels where the mean is large
  // against the spread: without rounding before that.
  ExactSum spread = target_squares_;
  spread.multiply(rows_);
  const auto sum = targets_.expansion();
  for (const double a : sum)
    for (const double b : sum) spread.add_product(-a, b);
  ExactSum left = squares_;
  left.multiply(rows_);
  const double total = spread.value();
  return total > 0 ? 1 - left.value() / total : kNaN;
}

std::vector<double> Regression::parts() const {
  std::vector<double> all;
  for (const ExactSum* sum : {&squares_, &absolutes_, &targets_, &target_squares_})
    append(all, *sum);
  all.push_back(static_cast<double>(rows_));
  return all;
}

void Regression::set_parts(const std::vector<double>& parts) {
  check_size("Regression", parts.size(), 4 * ExactSum::parts_count() + 1);
  Taker taker(parts);
  for (ExactSum* sum : {&squares_, &absolutes_, &targets_, &target_squares_}) *sum = taker.sum();
  rows_ = taker.count();
}

}  // namespace af::train
