// SPDX-License-Identifier: Apache-2.0
// What the ends of ranks mean for the world: whether the others go on, which failure was the first,
// and the exit code. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace af {

// How one rank ended.
struct RankEnd {
  int rank = -1;
  std::string host;
  int code = 0;    // exit code, if signal is 0
  int signal = 0;  // the signal that ended it
  std::vector<std::string> last_lines;
  std::string log;

  bool ok() const { return code == 0 && signal == 0; }
  int exit_code() const;  // as a shell gives it
};

class WorldOutcome {
 public:
  explicit WorldOutcome(int ranks) : ranks_(ranks) {}

  // True: the others have to be ended now. A world that has been told to stop (TERM, INT, HUP) is
  // left alone: its ranks may still be saving, and Slurm says how long.
  bool rank_ended(const RankEnd& end);
  // An agent or the front has gone, or ranks could not be started: `code` is the launcher's own.
  bool broken(const std::string& how, int code, const std::vector<int>& ranks_gone = {});
  void told_to_stop(int signal) { stopped_by_ = signal; }

  bool over() const { return static_cast<int>(ended_.size()) == ranks_; }
  bool ending() const { return ending_; }
  bool has_ended(int rank) const { return ended_.contains(rank); }
  int stopped_by() const { return stopped_by_; }
  int exit_code() const;
  const std::optional<RankEnd>& first_failure() const { return first_failure_; }
  std::string reason() const;  // "all ranks have finished", "rank 1 on n1 failed: exit code 7"

 private:
  int ranks_;
  std::set<int> ended_;
  bool ending_ = false;
  int stopped_by_ = 0;
  std::optional<RankEnd> first_failure_;
  std::string broken_;
  int broken_code_ = 0;
};

// "exit code 7", "signal KILL (9)".
std::string describe(const RankEnd& end);

}  // namespace af
