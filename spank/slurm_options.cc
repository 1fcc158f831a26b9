// SPDX-License-Identifier: Apache-2.0
// The real SlurmOptions: sbatch, srun and salloc export a global `opt`, and libslurmfull the
// functions that read and change it by option name. Their signatures are the same from Slurm 20.11
// to 26.05; the layout of `opt` is not, so here it is an address and nothing more.
//
// Found with dlsym: slurmd and slurmstepd load the same plugin and have no `opt`; an undefined data
// symbol would stop them from loading it.
#include "spank/slurm_options.h"

#include <dlfcn.h>
#include <getopt.h>

#include <cstdlib>

namespace af::spank {
namespace {

struct Symbols {
  void* opt = nullptr;
  bool (*isset)(void*, const char*) = nullptr;
  char* (*get)(void*, const char*) = nullptr;
  int (*set)(void*, const char*, const char*, bool) = nullptr;
  bool (*reset)(void*, const char*) = nullptr;
  // Without these two af still works, with less help for the person.
  option* (*table_create)(void*, char**) = nullptr;
  bool (*set_by_env)(void*, int) = nullptr;
};

template <typename Pointer>
bool find(const char* name, Pointer& pointer) {
  pointer = reinterpret_cast<Pointer>(dlsym(RTLD_DEFAULT, name));
  return pointer != nullptr;
}

class LiveSlurmOptions : public SlurmOptions {
 public:
  explicit LiveSlurmOptions(const Symbols& symbols) : slurm_(symbols) {}

  bool is_set(const std::string& name) const override {
    return slurm_.isset(slurm_.opt, name.c_str());
  }

  bool is_from_environment(const std::string& name) const override {
    if (!slurm_.set_by_env) return false;
    for (const LongOption& known : syntax().long_options) {
      if (known.name == name) return slurm_.set_by_env(slurm_.opt, known.value);
    }
    return false;
  }

  std::string get(const std::string& name) const override {
    // Slurm allocated the text with its own xmalloc, whose xfree has changed its signature over the
    // years: left to the end of this short-lived process on purpose.
    const char* text = slurm_.get(slurm_.opt, name.c_str());
    return text ? text : "";
  }

  bool set(const std::string& name, const std::string& value) override {
    // Reset first: srun's setter of --cpus-per-task compares with the value before and warns that
    // the step exceeds its job.
    slurm_.reset(slurm_.opt, name.c_str());
    return slurm_.set(slurm_.opt, name.c_str(), value.c_str(), false) == 0;
  }

  void reset(const std::string& name) override { slurm_.reset(slurm_.opt, name.c_str()); }

  OptionSyntax syntax() const override {
    if (!slurm_.table_create || !syntax_.long_options.empty()) return syntax_;
    char* short_options = nullptr;
    const option* table = slurm_.table_create(slurm_.opt, &short_options);
    if (short_options) syntax_.short_options = short_options;
    for (; table && table->name; ++table) {
      syntax_.long_options.push_back(
          {table->name, static_cast<Argument>(table->has_arg), table->val});
    }
    return syntax_;
  }

 private:
  const Symbols slurm_;
  mutable OptionSyntax syntax_;
};

}  // namespace

std::unique_ptr<SlurmOptions> find_slurm_options(std::string* missing) {
  Symbols symbols;
  const char* name = nullptr;
  const bool complete = find(name = "opt", symbols.opt) &&
                        find(name = "slurm_option_isset", symbols.isset) &&
                        find(name = "slurm_option_get", symbols.get) &&
                        find(name = "slurm_option_set", symbols.set) &&
                        find(name = "slurm_option_reset", symbols.reset);
  if (!complete) {
    if (missing) *missing = name;
    return nullptr;
  }
  find("slurm_option_table_create", symbols.table_create);
  find("slurm_option_set_by_env", symbols.set_by_env);
  return std::make_unique<LiveSlurmOptions>(symbols);
}

}  // namespace af::spank
