// SPDX-License-Identifier: Apache-2.0
// What of a step's gradients is there, and which bucket may be reduced next: no torch, no effects.
//
// Buckets go in the order of their indices, whatever the order in which they become complete: the
// ranks match collective operations by order, and gradients may come in another order on another
// rank. The last bucket never goes on its own: it carries what is known behind backward only.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "train/parallel/bucket_plan.h"

namespace af::train {

class BucketProgress {
 public:
  BucketProgress() = default;
  BucketProgress(const std::vector<BucketPlan>& plan, std::size_t parameters);

  // A new step: nothing has come.
  void begin();
  // The gradient of a parameter is complete. False if it was before: there is a second backward.
  bool mark(std::size_t parameter);
  // The next bucket that is complete, with all before it gone; it counts as gone then.
  std::optional<std::size_t> take_complete();
  // The next one whatever it has, the last one too; nothing when all have gone.
  std::optional<std::size_t> take_next();
  // The number of buckets that have gone.
  std::size_t gone() const { return gone_; }

 private:
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<std::size_t> sizes_;      // by bucket
  std::vector<std::size_t> missing_;    // by bucket
  std::vector<char> marked_;            // by parameter
  std::size_t gone_ = 0;
};

}  // namespace af::train
