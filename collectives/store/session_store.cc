// SPDX-License-Identifier: Apache-2.0
// The store of ranks under af-launch: the agent's socket, AF_SOCKET.
#include "collectives/store/session_store.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "af/communicator.h"
#include "collectives/local/socket.h"
#include "collectives/store/line_store.h"

namespace af {
namespace {

UniqueFd connect_path(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return UniqueFd();
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return UniqueFd();
  }
  return fd;
}

}  // namespace

UniqueFd connect_session(const std::string& socket) {
  UniqueFd fd =
      socket.starts_with('@') ? local::connect_unix(socket.substr(1)) : connect_path(socket);
  if (!fd) {
    throw CommunicatorError(CommunicatorError::Kind::store,
                            "cannot connect to the launcher's socket " + socket + ": " +
                                std::strerror(errno) +
                                "; is this process still inside its af-launch?");
  }
  return fd;
}

std::shared_ptr<Store> make_session_store(const std::string& socket) {
  return make_session_store(socket, nullptr);
}

std::shared_ptr<Store> make_session_store(const std::string& socket,
                                          std::shared_ptr<const Cancel> cancel) {
  return std::make_shared<LineStore>(
      "AF_SOCKET " + socket, [socket] { return connect_session(socket); }, std::move(cancel));
}

}  // namespace af
