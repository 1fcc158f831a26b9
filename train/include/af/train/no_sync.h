// SPDX-License-Identifier: Apache-2.0
// While it lives, backward passes add up gradients on their rank and reduce nothing.
#pragma once

#include <functional>
#include <utility>

namespace af::train {

class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::function<void()> end) : end_(std::move(end)) {}  // internal
  ~NoSync() {
    if (end_) end_();
  }
  NoSync(NoSync&& other) noexcept : end_(std::exchange(other.end_, nullptr)) {}
  NoSync& operator=(NoSync&&) = delete;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::function<void()> end_;
};

}  // namespace af::train
