// SPDX-License-Identifier: Apache-2.0
// In which order units are needed, learned from the pass before: decides what to gather ahead.
#pragma once

#include <cstddef>
#include <vector>

namespace af::train {

class UnitOrder {
 public:
  // The unit is needed now. Returns the one that was needed after it in the pass before, or -1.
  // A pass that differs from the one before costs gathers that nobody needed, nothing else.
  int next_after(int unit);
  // The first of the pass before, or -1.
  int first() const { return learned_.empty() ? -1 : learned_.front(); }
  // The pass is over: the next one is expected to be like it.
  void end_pass();

 private:
  std::vector<int> learned_;
  std::vector<int> now_;
  std::size_t place_ = 0;  // in learned_, behind the last that was found there
  int next_ = -1;
};

}  // namespace af::train
