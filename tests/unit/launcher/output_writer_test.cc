// SPDX-License-Identifier: Apache-2.0
#include "launcher/output_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace af {
namespace {

struct Pipe {
  Pipe() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    read.reset(fds[0]);
    write = std::make_shared<const UniqueFd>(UniqueFd(fds[1]));
  }
  std::string read_all() const {
    std::string text;
    char buffer[65536];
    for (ssize_t n; (n = ::read(read.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }
  UniqueFd read;
  OutputWriter::File write;
};

TEST(OutputWriter, NeverBlocksItsCallerAndLosesNothing) {
  Pipe pipe;
  std::string expected;
  OutputWriter writer;
  for (int i = 0; i < 1000; ++i) {  // far more than a pipe holds, and nobody reads yet
    const std::string text = std::to_string(i) + std::string(1000, 'x');
    expected += text;
    writer.write(pipe.write, text);
  }
  EXPECT_GT(writer.waiting(), 500000u);
  EXPECT_FALSE(writer.drain(0.01));
  pipe.write = nullptr;  // the writer has its own hold on the file
  EXPECT_EQ(pipe.read_all(), expected);
  EXPECT_TRUE(writer.drain(10));
  EXPECT_EQ(writer.waiting(), 0u);
}

TEST(OutputWriter, KeepsTheOrderOfTextAndWork) {
  Pipe pipe;
  OutputWriter writer;
  writer.write(pipe.write, "a");
  writer.run([fd = pipe.write] { EXPECT_EQ(::write(fd->get(), "b", 1), 1); });
  writer.write(pipe.write, "c");
  pipe.write = nullptr;
  EXPECT_EQ(pipe.read_all(), "abc");
}

TEST(OutputWriter, AReaderThatHasGoneIsAFailureAndNotTheEnd) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe gone, there;
  gone.read.reset();
  OutputWriter writer;
  writer.write(gone.write, "lost");
  writer.write(there.write, "kept");
  there.write = nullptr;
  EXPECT_EQ(there.read_all(), "kept");
  EXPECT_FALSE(writer.first_failure().empty());
}

}  // namespace
}  // namespace af
