// SPDX-License-Identifier: Apache-2.0
// Slurm's SPANK interface as C++ may use it. Include this, never <slurm/spank.h>.
//
// Traps that this header is for:
// - spank.h declares the hooks outside its own extern "C", and a const variable has internal
// linkage
//   in C++: included plainly, a plugin compiles, exports mangled hooks and no plugin_name, and
//   Slurm does not load it.
// - Every Slurm function is a weak reference. A strong one that a future Slurm lacks makes dlopen
//   fail or, bound lazily, kills the command in mid-flight (case B52: NVIDIA/pyxis#25 killed every
//   sbatch of a site). A weak one is null, and the code says so in words where it matters.
#pragma once

extern "C" {
#include <slurm/spank.h>

#pragma weak spank_context
#pragma weak spank_get_item
#pragma weak spank_getenv
#pragma weak spank_job_control_setenv
#pragma weak spank_option_register
#pragma weak spank_setenv
#pragma weak spank_unsetenv
#pragma weak slurm_error
#pragma weak slurm_spank_log
}
