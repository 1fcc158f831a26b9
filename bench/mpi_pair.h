// SPDX-License-Identifier: Apache-2.0
// Two ways to do the same thing, measured in the same processes under mpirun.
//
// Both sides run in turn in blocks of at most a second, in alternating order, so that what else
// happens on the machine hits both; the figure is the median of the ratios of neighbouring blocks.
// Blocks in which other programs took more than 5 % of the CPU do not count, unless most are such.
//
// Each rank writes its buffers anew before each operation, which is not timed: as after a backward
// pass, what a rank gives is in its own cache. Otherwise an operation that works in place would
// find its share of every buffer in its own cache from the time before.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace af::bench {

// Ranks of MPI_COMM_WORLD; set by start().
extern int rank, world;

// After MPI_Init: one core per rank, counted round among those that we may use, at most `cores`.
void start(std::size_t cores);

struct Block {
  double mean = 0;       // seconds of an operation, of the slowest rank
  double strangers = 0;  // share of the machine's CPU that other programs took
};

class Side {
 public:
  // `operation` is collective and timed, `prepare` runs before each one and is not. Calibrates:
  // runs them a few times.
  Side(std::function<void()> prepare, std::function<void()> operation);
  Block run();
  double median_operation();  // seconds, on this rank

 private:
  double time_of(int count);  // seconds, of the slowest rank; the same on all ranks

  std::function<void()> prepare_, operation_;
  int per_block_ = 1;
  std::vector<double> single_;
};

// Rank 0 prints one result as a JSON line (scripts/bench). Ratio: time of `theirs` over time of
// `ours`, times `factor`.
void compare(const std::string& name, const std::string& peer, Side& ours, Side& theirs,
             double factor = 1);

}  // namespace af::bench
