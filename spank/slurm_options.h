// SPDX-License-Identifier: Apache-2.0
// The options that sbatch, srun or salloc has parsed so far, by long name without dashes ("gres").
//
// An interface, so that the code that changes the request is tested without Slurm; the real one is
// find_slurm_options(). Not thread-safe: the commands parse their options in one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "spank/command_line.h"

namespace af::spank {

class SlurmOptions {
 public:
  virtual ~SlurmOptions() = default;

  // Whether anything (a #SBATCH line, a variable, the command line, set()) has set the option.
  virtual bool is_set(const std::string& name) const = 0;
  // Whether its value is from a variable such as SLURM_NTASKS; false where Slurm does not tell.
  virtual bool is_from_environment(const std::string& name) const = 0;
  // As Slurm would print it; "" if there is no such option or no value.
  virtual std::string get(const std::string& name) const = 0;
  // False: this Slurm does not know the option or refuses the value.
  virtual bool set(const std::string& name, const std::string& value) = 0;
  virtual void reset(const std::string& name) = 0;
  // What the command's own getopt knows; empty where this Slurm does not tell.
  virtual OptionSyntax syntax() const = 0;
};

// The options of this process. Null if it does not export what we need (then `missing` names the
// symbol): it is not sbatch, srun or salloc, or a Slurm that has changed.
std::unique_ptr<SlurmOptions> find_slurm_options(std::string* missing);

}  // namespace af::spank
