// SPDX-License-Identifier: Apache-2.0
// What the files of the C API share: the communicator's handle, and the way from exceptions to
// codes.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "af/af.h"
#include "af/communicator.h"

struct af_communicator {
  // Its own, or a world's, which this handle does not keep alive.
  std::shared_ptr<af::Communicator> held;
  af::Communicator& communicator = *held;
  std::string description = communicator.description();
};

namespace af::c_api {

// Notes the failure for af_last_error() and gives `code`.
int keep(int code, const char* text, const std::vector<int>& ranks = {}) noexcept;

template <typename Body>
int guarded(Body body) noexcept {
  try {
    body();
    return AF_OK;
  } catch (const CommunicatorError& error) {
    return keep(int(error.kind()), error.what(), error.ranks());
  } catch (const std::exception& error) {
    return keep(AF_ERROR_SYSTEM, error.what());
  } catch (...) {
    return keep(AF_ERROR_SYSTEM, "unknown failure");
  }
}

// Throws invalid_argument: "`what` is NULL".
void require(const void* pointer, const char* what);

}  // namespace af::c_api
