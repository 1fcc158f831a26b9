// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "af/train/callback.h"

namespace af::train {

// A report, with when it was made.
struct LogRecord {
  double time = 0;  // seconds since 1970
  int64_t step = 0;
  int64_t epoch = 0;
  Metrics metrics;
};

}  // namespace af::train
