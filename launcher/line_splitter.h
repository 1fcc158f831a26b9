// SPDX-License-Identifier: Apache-2.0
// Cuts a rank's output into whole lines, so that lines of different ranks and of its two streams
// are never mixed. Pure.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace af {

class LineSplitter {
 public:
  // A line without an end is cut here: a rank that prints no newline must not fill the memory.
  static constexpr size_t kLongest = 64 << 10;

  // Lines that are complete now, each with its end: "\n", "\r\n", or "\r" (progress bars draw with
  // it, and would show nothing until they are done). A piece that was cut has no end.
  std::vector<std::string> feed(std::string_view bytes);
  // What is left at the end of the stream; empty if nothing.
  std::string rest();

 private:
  std::string pending_;
};

// The last lines of a rank, for the report of its failure.
class Tail {
 public:
  explicit Tail(size_t lines) : most_(lines) {}
  void add(std::string_view line);  // a line as LineSplitter gives it
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  size_t most_;
  std::deque<std::string> lines_;
};

}  // namespace af
