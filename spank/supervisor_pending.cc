// SPDX-License-Identifier: Apache-2.0
// Stands in until supervisor.cc and sweep.cc are there (module.mk): nothing is supervised or swept.
#include <cerrno>

#include "spank/supervisor.h"
#include "spank/sweep.h"

namespace af {

__attribute__((weak)) int start_supervisor() noexcept { return ENOSYS; }
SweepResult sweep(const SweepMark&, std::chrono::milliseconds) noexcept { return {}; }

}  // namespace af
