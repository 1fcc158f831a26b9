// SPDX-License-Identifier: Apache-2.0
// The files of a run: where they are, and making them.
//
//   RUN_DIR/events.jsonl  state.json  secret  checkpoints/  logs/attempt-A/gen-G/rank-R.log
//
// RUN_DIR is af-runs/<run id> in the submit directory. A job that calls af-launch a second time
// gets af-runs/<run id>.1 and so on: another program, another run; a requeued job finds the same
// ones.
#pragma once

#include <filesystem>
#include <string>

namespace af {

struct RunDirectory {
  std::filesystem::path path;  // absolute
  int generation = 0;

  std::filesystem::path events() const { return path / "events.jsonl"; }
  std::filesystem::path state() const { return path / "state.json"; }
  std::filesystem::path secret() const { return path / "secret"; }
  std::filesystem::path checkpoints() const { return path / "checkpoints"; }
  std::filesystem::path logs(int attempt) const;
  std::filesystem::path rank_log(int attempt, int rank) const;
};

// Makes RUN_DIR and what is in it, for one launch, and claims it for this attempt, so that two
// launches of one job at the same time get two directories. `asked` (--run-dir) is taken as it is
// and may be used again; a relative one is under `base`, which also holds af-runs.
// Throws Error with the path and the reason if it cannot be written.
RunDirectory create_run_directory(const std::filesystem::path& base, const std::string& asked,
                                  const std::string& run_id, int attempt);

// The run's secret, made on first use: 64 hex digits in a 0600 file that others cannot read.
std::string create_secret(const RunDirectory& directory);
std::string read_secret(const RunDirectory& directory);

}  // namespace af
