// SPDX-License-Identifier: Apache-2.0
// Which places of which windows each rank takes in a step: pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "af/train/window_dealer.h"

namespace af::train {

struct WindowSlice {
  int64_t window;
  OpenWindow::Places places;
};

struct WindowDeal {
  std::vector<std::vector<WindowSlice>> of_rank;
  // Behind the step, with all that is dealt gone. A window that is at its end is still listed.
  std::vector<OpenWindow> open;
  int64_t next_window = 0;
};

// Rows that are still to be dealt of an open window of `rows` rows.
int64_t rows_left(const OpenWindow& open, int64_t rows);

// A step of `total` rows for `world` ranks. `rows_of_window`: by window, all of the epoch. There
// must be as many rows left.
WindowDeal deal_windows(const std::vector<OpenWindow>& open, int64_t next_window,
                        const std::vector<int64_t>& rows_of_window, int64_t total, int world);

}  // namespace af::train
