// SPDX-License-Identifier: Apache-2.0
// A copy in host memory of the part of a state that one rank writes, kept from save to save.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "af/train/state_file.h"
#include "train/checkpoint/archive_file.h"
#include "train/checkpoint/share_plan.h"
#include "train/checkpoint/state_layout.h"

namespace af::train {

class ShareBuffer {
 public:
  // Plans this rank's part and makes memory for it where that of before is too small.
  void plan(const State& state, int rank, int world_size);
  // Where plan() has made memory, fills it with zeros: it comes from the system now.
  void touch();
  // The part of `state` that was planned. A training may change the state when this returns.
  void copy(const State& state);
  // Into the file it was planned for.
  std::vector<WrittenPart> write(ArchiveFile& file) const;

  const StateLayout& layout() const { return *layout_; }
  bool empty() const { return pieces_.empty(); }

 private:
  std::optional<StateLayout> layout_;
  std::vector<SharePiece> pieces_;
  at::Tensor memory_;
  bool untouched_ = false;
};

}  // namespace af::train
