// SPDX-License-Identifier: Apache-2.0
// Ends a training when a metric has not become better for a while.
//
//   auto stop = std::make_shared<af::train::EarlyStop>("accuracy", EarlyStopOptions{…});
//   callbacks.add(stop);
//   // The count goes on after a restart, and on a rank that comes:
//   replicas.keep("early stop", at::from_blob(stop->values(), {EarlyStop::kValues}, at::kDouble));
//   …
//   callbacks.report({step, epoch, {{"accuracy", accuracy}}});  // agreed: from a sum over ranks
//   if (callbacks.stop_asked()) break;
//
// Decides from the reported value alone. Reported on all ranks with the same value (over_ranks(),
// DataParallel::sum() and step() give such), it stops all of them at the same step, without a word
// between them. For a value that is not agreed, ask Callbacks::stop_agreed() in place of
// stop_asked().
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "af/export.h"
#include "af/train/callback.h"

namespace af::train {

struct EarlyStopOptions {
  enum class Mode { min, max };
  Mode mode = Mode::min;
  // So many reports in a row without a better value end the training.
  int64_t patience = 3;
  // Better means by more than this.
  double min_delta = 0;
};

// Use from one thread.
class AF_PUBLIC EarlyStop : public Callback {
 public:
  // Throws af::Error for a patience below 1 or a min_delta below 0.
  explicit EarlyStop(std::string metric, EarlyStopOptions options = {});

  // Whether to stop. A NaN is not better. After a stop it is true for every value.
  bool update(double value);
  double best() const;  // NaN before the first value
  int64_t without_better() const;
  bool stopped() const;

  // The state as numbers, for checkpoints: written to in update(), read when it is loaded into.
  static constexpr int64_t kValues = 4;
  double* values() { return values_.data(); }

  std::string name() const override;
  // Both throw StopTraining; at the start for a training that was over already. Reports without the
  // metric do not count.
  void on_start(const StartInfo& info) override;
  void on_report(const ReportInfo& info) override;

 private:
  std::string reason() const;

  std::string metric_;
  EarlyStopOptions options_;
  std::array<double, kValues> values_{};  // any yet, best, without_better, stopped
};

}  // namespace af::train
