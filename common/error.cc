// SPDX-License-Identifier: Apache-2.0
#include "common/error.h"

#include <cerrno>
#include <system_error>

namespace af {

Error errno_error(const std::string& what) {
  const int code = errno;
  return Error::format("{}: {}", what, std::generic_category().message(code));
}

}  // namespace af
