// SPDX-License-Identifier: Apache-2.0
// How the agents of one step find each other: one all-gather of an opaque text, then everybody
// knows everything and each computes the same plan by itself.
//
// Two implementations: MPI (mpi_bootstrap.h, a module loaded with dlopen) and TCP
// (tcp_bootstrap.h).
#pragma once

#include <string>
#include <vector>

namespace af {

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;

  // Gives every agent's text, by task number; collective over all agents of the step. Called once.
  // Throws Error if the world that answers has not the size that Slurm says (a PMI mismatch makes
  // N worlds of one), or if agents are missing at the timeout: their task numbers are in the text.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;

  virtual std::string name() const = 0;  // "mpi", "tcp", "none"
};

}  // namespace af
