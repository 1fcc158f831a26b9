// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/identity.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "af/communicator.h"

namespace af::local {

std::string node_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network = {};
  // Without the namespace's number (no /proc) a rank counts as a node of its own: slower, not
  // wrong.
  if (boot.empty() || stat("/proc/self/ns/net", &network) != 0) return random_hex(32);
  return boot + "/" + std::to_string(network.st_dev) + ":" + std::to_string(network.st_ino) + "/" +
         std::to_string(geteuid());
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::string random_hex(std::size_t characters) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string bytes(characters, '\0');
  std::size_t got = 0;
  while (got < characters) {
    const ssize_t n = getrandom(bytes.data() + got, characters - got, 0);
    if (n < 0 && errno != EINTR) {
      throw CommunicatorError(CommunicatorError::Kind::system,
                              std::string("no random bytes: ") + std::strerror(errno));
    }
    if (n > 0) got += std::size_t(n);
  }
  for (char& c : bytes) c = kDigits[static_cast<unsigned char>(c) % 16];
  return bytes;
}

}  // namespace af::local
