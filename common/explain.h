// SPDX-License-Identifier: Apache-2.0
// The text of --af-explain and of `af explain`: what is in force and why, the exact Slurm request,
// where it would run. The layout is stable: tests and people's scripts read it. Goes to stderr.
#pragma once

#include <string>
#include <vector>

#include "common/request.h"

namespace af {

// `trailer`: what follows the options on the native line ("train.sh", "python train.py"); may be
// "".
std::string explain(const Settings& settings, const Site& site, const NativeOptions& native,
                    const Request& request, const std::string& trailer);

// "sbatch --ntasks=4 --gpus-per-task=1 …", quoted for a shell where needed.
std::string native_line(const NativeOptions& native, const Request& request,
                        const std::string& trailer);

// `text` as one word of a shell: unchanged if it is one, else in single quotes.
std::string shell_quoted(const std::string& text);

}  // namespace af
