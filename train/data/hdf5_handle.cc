// SPDX-License-Identifier: Apache-2.0
#include "train/data/hdf5_handle.h"

namespace af::train {

std::recursive_mutex& QuietHdf5::mutex() {
  static std::recursive_mutex one;
  return one;
}

std::string hdf5_reason() {
  std::string reason = "unknown reason";
  // Upward begins at the innermost call, the first cause; the callback stops the walk there.
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* entry, void* out) -> herr_t {
        if (entry->desc != nullptr) *static_cast<std::string*>(out) = entry->desc;
        return 1;
      },
      &reason);
  return reason;
}

}  // namespace af::train
