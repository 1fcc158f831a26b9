// SPDX-License-Identifier: Apache-2.0
// The one exception type of af, and the policy around it (docs/errors.md).
//
// An Error is written for the person who will read it: what failed, where (host, rank, path,
// value), and what to do. It is thrown inside af and caught at the edges only: main(), a SPANK
// hook, the C API. An edge prints it as one line on stderr and gives a non-zero result.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace af {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  // Error::format("cannot read {}: {}", path, reason)
  template <typename... Args>
  static Error format(fmt::format_string<Args...> text, Args&&... args) {
    return Error(fmt::format(text, std::forward<Args>(args)...));
  }
};

// "cannot open /work/x: Permission denied", with errno as it is at the call.
Error errno_error(const std::string& what);

}  // namespace af
