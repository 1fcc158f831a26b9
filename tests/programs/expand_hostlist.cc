// SPDX-License-Identifier: Apache-2.0
// Prints the names of a node list, one a line: tests/cluster/test_hostlist.py compares them with
// scontrol's.
#include <cstdio>
#include <exception>

#include "common/hostlist.h"

int main(int argc, char** argv) {
  try {
    for (const std::string& name : af::expand_hostlist(argc > 1 ? argv[1] : ""))
      std::puts(name.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
