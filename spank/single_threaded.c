// SPDX-License-Identifier: Apache-2.0
// A private __libc_single_threaded for the code that is linked statically into the plugin.
//
// Debian's libyaml-cpp.a is built for executables: its shared_ptr code reads this variable of libc
// relative to the program counter, which a shared object may do only with a variable of its own.
// 0 says "there may be threads": counters are then always atomic, which is right in any process
// that loads us.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;
