// SPDX-License-Identifier: Apache-2.0
// Keeps apart what the person asked Slurm for and what af has set, and writes af's part.
//
// The option callback runs once for each --af-* option, and the request depends on all of them: so
// each time it is worked out anew, and what an earlier call has set is taken back first. A value
// that is set and is not what we set last is the person's.
#pragma once

#include <map>
#include <span>
#include <string>

#include "common/request.h"
#include "spank/slurm_options.h"

namespace af::spank {

class RequestWriter {
 public:
  // `slurm` must outlive the writer.
  explicit RequestWriter(SlurmOptions& slurm) : slurm_(slurm) {}

  // In a step of an existing allocation, values that come from the job's own variables
  // (SLURM_NTASKS, SLURM_MEM_PER_GPU, …) are the allocation's and not what the person asks of the
  // step.
  void ignore_environment() { ignore_environment_ = true; }

  // What is set of `names` and is the person's, also where af's value stands over it.
  std::map<std::string, std::string, std::less<>> persons_options(
      std::span<const std::string> names) const;

  // Makes `options` what af has set: sets what differs, gives back what is no longer wanted.
  // Throws Error naming an option that this Slurm does not take.
  void write(std::span<const SlurmOption> options);
  // Gives back everything.
  void withdraw() { write({}); }

 private:
  struct Written {
    std::string asked;  // as we gave it
    std::string shown;  // as Slurm showed it right after
    bool had_before = false;
    std::string before;  // the person's value that it replaced
  };

  bool still_ours(const std::string& name, const Written& written) const;

  SlurmOptions& slurm_;
  bool ignore_environment_ = false;
  std::map<std::string, Written> written_;
};

}  // namespace af::spank
