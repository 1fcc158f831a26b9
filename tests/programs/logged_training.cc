// SPDX-License-Identifier: Apache-2.0
// Fits a line and logs to everything there is; tests/wheel reads it back with the real things. It
// takes as many steps as the next line of its input says, answers with the step that it is at, and
// ends with the input.
//   logged_training DIRECTORY [FIRST_STEP]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "af/train/callback.h"
#include "af/train/loggers.h"
#include "af/train/mlflow_logger.h"
#include "af/train/profile.h"
#include "af/train/session.h"
#include "af/train/trace.h"
#include "af/train/validation.h"

namespace {

using namespace af::train;

// y = 3 x + 1 at x = 0, 1/16, 2/16, …
class Line {
 public:
  double step() {
    double slope = 0;
    double height = 0;
    Mean loss;
    for (int i = 0; i < kRows; ++i) {
      const double error = at(i) - target(i);
      loss.add(error * error);
      slope += 2 * error * x(i) / kRows;
      height += 2 * error / kRows;
    }
    slope_ -= 0.5 * slope;
    height_ -= 0.5 * height;
    return loss.value();
  }
  Regression test() const {
    Regression regression;
    for (int i = 0; i < kRows; ++i) regression.add(at(i), target(i));
    return regression;
  }

 private:
  static constexpr int kRows = 16;
  static double x(int i) { return i / double{kRows}; }
  static double target(int i) { return 3 * x(i) + 1; }
  double at(int i) const { return slope_ * x(i) + height_; }
  double slope_ = 0;
  double height_ = 0;
};

void train(Callbacks& callbacks, int64_t first) {
  Line line;
  callbacks.start({0, 1, first - 1});
  int64_t step = first - 1;
  for (std::string text; std::getline(std::cin, text);) {
    for (int64_t left = std::stoll(text); left > 0; --left) {
      ++step;
      TraceSpan span(TraceKind::compute, "step of the line");
      const double loss = line.step();
      span.end();
      callbacks.step({step, 0, 16, loss});
      callbacks.report({step,
                        step / 10,
                        {{"loss", loss},
                         {"test/r2", line.test().r2()},
                         {"odd (%)", step % 2 == 0 ? std::nan("") : double(step)}}});
    }
    std::printf("%ld\n", static_cast<long>(step));
    std::fflush(stdout);
  }
  callbacks.end({EndInfo::How::finished, step});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::filesystem::path directory = argv[1];
  Session session = Session::from_environment();
  Callbacks callbacks;
  callbacks.add(tensorboard_logger(directory / "tensorboard"));
  callbacks.add(csv_logger(directory / "metrics.csv"));
  callbacks.add(json_lines_logger(directory / "metrics.jsonl"));
  callbacks.add(journal_logger(session));
  callbacks.add(mlflow_logger_from_environment());
  callbacks.add(Profile::from_environment());
  callbacks.watch([&] { train(callbacks, argc > 2 ? std::atoll(argv[2]) : 1); });
  return 0;
}
