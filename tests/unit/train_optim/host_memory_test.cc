// SPDX-License-Identifier: Apache-2.0
#include "af/train/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace af::train {
namespace {

// Pages that the kernel had to give for 64 MiB that were freed just before.
long pages_of_a_second_use() {
  constexpr std::size_t kBytes = 64 << 20;
  const auto use = [] {
    auto* bytes = static_cast<volatile char*>(std::malloc(kBytes));
    for (std::size_t at = 0; at < kBytes; at += 4096) bytes[at] = 1;
    std::free(const_cast<char*>(bytes));
  };
  const auto faults = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  use();
  const long before = faults();
  use();
  return faults() - before;
}

// In a process of its own: it is for all of a process, and for good.
int exit_code_of(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(HostMemory, FreedMemoryIsUsedAgain) {
  if (exit_code_of([] { return pages_of_a_second_use() > 1000; }) != 0)
    GTEST_SKIP() << "the kernel gives large pages here: there is nothing to keep";
  EXPECT_EQ(exit_code_of([] {
              keep_freed_memory();
              return pages_of_a_second_use() < 100;
            }),
            0);
}

}  // namespace
}  // namespace af::train
