// SPDX-License-Identifier: Apache-2.0
// The command line of af-launch: its own options, then the program's, which are left alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/plan.h"

namespace af {

struct Options {
  int workers = 0;  // 0: as many as the job was made for
  int gpus_per_worker = 0;
  std::string backend;                 // empty: decide
  std::optional<ProgramKind> program;  // nullopt: by its name
  std::string bootstrap = "auto";      // auto, mpi, tcp
  std::string run_directory;           // empty: af-runs/<run id>
  double grace = 5;  // seconds from TERM to KILL for the other ranks when one has failed
  std::optional<double> save_before;  // seconds before the time limit; nullopt: decide
  bool dry_run = false;
  bool verbose = false;
  // From the front to the agents that it starts.
  bool agent = false;
  std::string front;  // address:port
  int generation = 0;
  // Elastic runs (docs/design/elastic.md).
  std::string join;  // this is a satellite: address:port of its coordinator, or the run directory
  std::string satellites;            // the name of the satellites' jobs; empty: there are none
  int max_workers = 0;               // outside Slurm: others may --join, up to so many
  double grow_interval = 30;         // seconds between two growths
  std::vector<std::string> command;  // PROGRAM [ARGS…]
};

struct ParsedOptions {
  std::optional<Options> options;  // nullopt: `text` is all there is to do
  std::string text;                // help or version, for stdout
};

// `arguments` without argv[0]. Throws Error for one line about what is wrong.
ParsedOptions parse_options(const std::vector<std::string>& arguments);

// torch for python and *.py, else af.
ProgramKind program_kind(const Options& options);

}  // namespace af
