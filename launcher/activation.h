// SPDX-License-Identifier: Apache-2.0
// The part of activating a conda or Pixi environment that PATH alone does not do: packages may put
// scripts into <prefix>/etc/conda/activate.d that set variables their programs need (PROJ_DATA,
// GDAL_DATA, compilers' flags). `conda activate` needs a shell set up for it, and solves or locks
// nothing here: the scripts are sourced by path, and the environment may be read-only (case B43).
#pragma once

#include <string>
#include <vector>

#include "launcher/environment.h"

namespace af {

struct Activated {
  Environment environment;            // `before` with what the scripts set and unset
  std::vector<std::string> warnings;  // a script that failed; the others count all the same
};

// Sources the *.sh of `prefix`/etc/conda/activate.d in the order of their names, with bash and the
// environment `before`; what they print goes to stderr. Starts no process where there are none.
// Scripts that do not end within `seconds` are ended, and `before` is given back with a warning.
Activated activate(const std::string& prefix, Environment before, double seconds = 30);

}  // namespace af
