// SPDX-License-Identifier: Apache-2.0
// The name that all satellites of a launch have, by which they are found and cancelled; and their
// cancelling as the last act of a front or a keeper. Blocking, without a loop.
//
// Job numbers are hints only: a slurmctld that has crashed gives the number of a job that it has
// lost to the next one, which may be the person's other job.
#pragma once

#include <string>

#include "launcher/environment.h"

namespace af {

// "af-<run id>-<nonce>". Of the run id only what squeue and scancel take as one name is kept
// (letters, digits, '.', '_', '-'; other characters become '_'), 64 characters at most.
std::string satellite_name(const std::string& run_id, const std::string& nonce);

// 16 hex digits, another one in each call.
std::string satellite_nonce();

// The environment that Slurm's commands are started with from inside a job, made from nothing:
// inherited SLURM_, SBATCH_ and SPANK variables would shape the new job, or make its srun fail.
Environment slurm_environment(const Environment& inherited);

// `scancel --me --name=NAME`: pending and running ones. Again and again until scancel says that it
// was done or `seconds` have passed. "" or why it is not done, in words. Blocks; leaves no child.
// The person's other jobs are never concerned. May be called where children are reaped by
// waitpid(-1) only if that happens in this thread.
std::string cancel_satellites(const std::string& name, const Environment& inherited,
                              double seconds = 8);

}  // namespace af
