// SPDX-License-Identifier: Apache-2.0
#include "common/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/error.h"

namespace af {
namespace {

class AtomicFile : public testing::Test {
 protected:
  AtomicFile() {
    std::string name = (std::filesystem::temp_directory_path() / "af-atomic-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~AtomicFile() override { std::filesystem::remove_all(directory_); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_), {}));
  }
  std::filesystem::path directory_;
};

TEST_F(AtomicFile, ReplacesTheWholeContentAndLeavesNothingElse) {
  const auto path = directory_ / "state.json";
  write_file_atomically(path, std::string(100000, 'a'));
  write_file_atomically(path, std::string_view("b\0c", 3));
  EXPECT_EQ(read_file(path), std::string("b\0c", 3));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFile, GivesTheModeThatWasAskedFor) {
  const auto path = directory_ / "secret";
  write_file_atomically(path, "s", 0600);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST_F(AtomicFile, FailureNamesThePathAndKeepsTheOldFile) {
  const auto directory = directory_ / "taken";
  std::filesystem::create_directories(directory / "child");
  try {
    write_file_atomically(directory, "x");  // rename onto a directory fails, whoever we are
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(directory.string()), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::exists(directory / "child"));
  EXPECT_EQ(entries(), 1u);
  EXPECT_THROW(read_file(directory_ / "missing"), Error);
}

}  // namespace
}  // namespace af
