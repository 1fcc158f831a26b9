// SPDX-License-Identifier: Apache-2.0
#include "spank/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "spank/slurm_api.h"

namespace af::spank {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

void report_error(const std::string& text) {
  if (slurm_error) {
    slurm_error("af: %s", one_line(text).c_str());
  } else {
    std::fprintf(stderr, "af: %s\n", one_line(text).c_str());
  }
}

void report_warning(const std::string& text) {
  if (slurm_spank_log) {
    slurm_spank_log("af: %s", one_line(text).c_str());
  } else {
    std::fprintf(stderr, "af: %s\n", one_line(text).c_str());
  }
}

void refuse(const std::string& text) {
  report_error(text);
  // Slurm's own convention (sbatch(1), SLURM_EXIT_ERROR): people tell "not submitted" from the
  // code of their program by it.
  int code = 1;
  if (const char* asked = std::getenv("SLURM_EXIT_ERROR")) code = std::atoi(asked);
  std::exit(code == 0 ? 1 : code);
}

}  // namespace af::spank
