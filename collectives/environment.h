// SPDX-License-Identifier: Apache-2.0
// Which world this process belongs to, from the variables that its launcher set.
#pragma once

#include <functional>

#include "af/communicator.h"

namespace af {

// `get` is getenv or a test's table. Throws CommunicatorError (invalid_argument) naming variable
// and value. Opens no connection, except that rank 0 of a MASTER_ADDR world begins to serve its
// store.
Options options_from(const std::function<const char*(const char*)>& get);

// AF_BACKEND as a rank under af-launch takes it. Throws as above.
BackendKind backend_under_af_launch(const std::function<const char*(const char*)>& get);

}  // namespace af
