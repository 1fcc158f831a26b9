// SPDX-License-Identifier: Apache-2.0
#include "launcher/exec_parts.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/error.h"

namespace af {

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) throw errno_error("cannot make a pipe");
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

void set_non_blocking(const UniqueFd& fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

std::vector<char*> exec_pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace af
