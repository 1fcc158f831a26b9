// SPDX-License-Identifier: Apache-2.0
// How the plugin speaks: one line on stderr, never stdout, which tools parse for the job id (B51).
#pragma once

#include <string>

namespace af::spank {

// "sbatch: error: af: TEXT" in a command; the log of slurmd in a step. Line ends become blanks.
void report_error(const std::string& text);
// "sbatch: af: TEXT": a warning that stops nothing.
void report_warning(const std::string& text);

// Ends sbatch, srun or salloc with report_error(text) and Slurm's code for errors.
//
// Not by a return code: from the option callback Slurm adds a line of its own, and after
// init_post_opt of a plugin that is `optional` in plugstack.conf it submits the job all the same.
// Nothing has been submitted when options are still being read.
[[noreturn]] void refuse(const std::string& text);

}  // namespace af::spank
