// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "af/store.h"
#include "collectives/cancel.h"
#include "common/unique_fd.h"

namespace af {

// A connection to the agent, non-blocking; `socket` is the value of AF_SOCKET. Throws
// CommunicatorError (store).
UniqueFd connect_session(const std::string& socket);

// make_session_store() whose requests end with CommunicatorError (aborted) when `cancel` is raised.
std::shared_ptr<Store> make_session_store(const std::string& socket,
                                          std::shared_ptr<const Cancel> cancel);

}  // namespace af
