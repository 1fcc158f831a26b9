// SPDX-License-Identifier: Apache-2.0
// Which attempts of a run (starts of its job by Slurm) have made progress: a report, a checkpoint,
// a newer file in the checkpoint directory, or all ranks left with 0 when told to save.
//
// RUN_DIR/attempts.json is written when an attempt starts and when it ends. An attempt that was
// killed wrote no end: its progress is seen from the journal and from the files there are.
// One writer: the front.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launcher/run_directory.h"

namespace af {

struct AttemptRecord {
  int attempt = 0;
  int64_t newest_file = 0;  // in the checkpoint directory when it started; ns, 0: none
  bool progress = false;
  bool closed = false;  // the run had ended: done, failed, or given up. What follows counts anew
};

// How many at the end of the list have no progress; those up to the last closed one do not count.
int count_fruitless(const std::vector<AttemptRecord>& attempts);

// What the journal says so far. Reads on where it has stopped.
class JournalReader {
 public:
  JournalReader(std::filesystem::path path, std::string run) : path_(path), run_(std::move(run)) {}
  void read();
  bool has_progress(int attempt) const;
  double longest_checkpoint() const { return longest_checkpoint_; }  // seconds; 0: none

 private:
  void take(const std::string& line);
  std::filesystem::path path_;
  std::string run_;
  int64_t offset_ = 0;
  std::vector<int> with_progress_;
  double longest_checkpoint_ = 0;
};

class Attempts {
 public:
  // Never throws: a run directory that cannot be read counts as a first attempt.
  // `checkpoints`: checkpoint_directory() of checkpoint_watch.h.
  Attempts(const RunDirectory& directory, std::filesystem::path checkpoints, std::string run,
           int attempt);

  int fruitless_before() const;  // without this attempt
  void begin();                  // writes that it has started
  // Without `told_progress`, from the files. Afterwards: fruitless attempts with this one.
  int fruitless_now(bool told_progress);
  void end(bool closed);  // writes how it has ended
  JournalReader& journal() { return journal_; }

 private:
  void write() const;
  RunDirectory directory_;
  std::filesystem::path checkpoints_;
  std::string run_;
  std::vector<AttemptRecord> attempts_;  // the last one is this
  JournalReader journal_;
};

}  // namespace af
