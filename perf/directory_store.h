// SPDX-License-Identifier: Apache-2.0
// A rendezvous in a directory: one file per key. For ranks on one host, or on shared storage,
// where no launcher offers a store.
#pragma once

#include <memory>
#include <string>

#include "af/store.h"

namespace af::perf {

// Makes the directory (mode 0700) if it is not there; whoever names it also removes it. Each run
// needs a directory of its own: keys of an earlier one would be taken for this one's.
std::shared_ptr<Store> make_directory_store(const std::string& directory);

// A name that the processes started by one parent (mpirun's daemon, slurmstepd) share and no
// others: from the parent's pid and start time.
std::string directory_of_siblings();

}  // namespace af::perf
