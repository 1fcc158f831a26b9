// SPDX-License-Identifier: Apache-2.0
#include "af/train/host_memory.h"

#include <cstdlib>
#include <limits>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace af::train {

void keep_freed_memory() {
#ifdef __GLIBC__
  // No mapping for any size: the threshold for one cannot be raised beyond 32 MiB (malloc(3)).
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  // The heap grows by so much at a time.
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace af::train
