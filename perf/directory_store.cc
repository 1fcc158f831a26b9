// SPDX-License-Identifier: Apache-2.0
#include "perf/directory_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "af/communicator.h"
#include "common/error.h"

namespace af::perf {
namespace {

class DirectoryStore final : public Store {
 public:
  explicit DirectoryStore(std::string directory) : directory_(std::move(directory)) {
    struct stat status {};
    if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) {
      throw errno_error("cannot make " + directory_);
    }
    // In /tmp somebody else could have made it first, to feed us values.
    if (::lstat(directory_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != ::geteuid()) {
      throw Error::format("{} is not a directory of this user", directory_);
    }
  }

  void set(const std::string& key, const std::string& value) override {
    const std::string path = path_of(key);
    const std::string unfinished = path + "." + std::to_string(::getpid()) + ".tmp";
    std::ofstream(unfinished) << value;
    if (::rename(unfinished.c_str(), path.c_str()) != 0) {
      throw CommunicatorError(CommunicatorError::Kind::store,
                              errno_error("cannot write " + path).what());
    }
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (true) {
      std::ifstream file(path_of(key));
      if (file) return std::string(std::istreambuf_iterator<char>(file), {});
      if (std::chrono::steady_clock::now() > deadline) {
        throw CommunicatorError(CommunicatorError::Kind::timeout,
                                "no key " + key + " in " + directory_);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  // Keys may hold anything, file names may not.
  std::string path_of(const std::string& key) const {
    std::string path = directory_ + "/";
    for (const unsigned char c : key) {
      path += std::isalnum(c) || c == '-' ? std::string(1, static_cast<char>(c))
                                          : fmt::format("_{:02x}", c);
    }
    return path;
  }

  std::string directory_;
};

}  // namespace

std::shared_ptr<Store> make_directory_store(const std::string& directory) {
  return std::make_shared<DirectoryStore>(directory);
}

std::string directory_of_siblings() {
  // Field 22 of /proc/PID/stat is the start time; the name in field 2 may hold spaces and brackets.
  std::ifstream file("/proc/" + std::to_string(::getppid()) + "/stat");
  const std::string line(std::istreambuf_iterator<char>(file), {});
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string start;
  for (int field = 3; field <= 22; ++field) fields >> start;
  return fmt::format("{}/af-perf-{}-{}-{}", std::filesystem::temp_directory_path().string(),
                     ::geteuid(), ::getppid(), start);
}

}  // namespace af::perf
