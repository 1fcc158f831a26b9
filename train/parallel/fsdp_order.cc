// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/fsdp_order.h"

#include <algorithm>

namespace af::train {
namespace {

// A program that runs units for ever and never ends a pass need not be remembered.
constexpr std::size_t kMost = 1 << 16;

}  // namespace

int UnitOrder::next_after(int unit) {
  if (!now_.empty() && now_.back() == unit) return next_;
  if (now_.size() < kMost) now_.push_back(unit);
  next_ = -1;
  const auto found =
      std::find(learned_.begin() + static_cast<std::ptrdiff_t>(place_), learned_.end(), unit);
  if (found == learned_.end()) return next_;
  place_ = static_cast<std::size_t>(found - learned_.begin()) + 1;
  if (place_ < learned_.size()) next_ = learned_[place_];
  return next_;
}

void UnitOrder::end_pass() {
  // One that ran nothing, such as a backward of the root alone, says nothing.
  if (!now_.empty()) learned_.swap(now_);
  now_.clear();
  place_ = 0;
}

}  // namespace af::train
