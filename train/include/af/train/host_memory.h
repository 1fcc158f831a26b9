// SPDX-License-Identifier: Apache-2.0
// For trainings on the CPU: memory that a step frees is what the next step takes.
//
//   int main() {
//     af::train::keep_freed_memory();
//     ...
//
// GPUs have an allocator of torch's that keeps what is freed. On the CPU each large tensor (32 MiB
// and more, always; from 128 KiB on at first) is a mapping of its own that the kernel gives and
// takes back, page by page, and clears: activations, the gradients that backward makes and what an
// optimizer needs in between, in every step anew. On a virtual machine that was 40 % of a step of
// 25 M parameters with torch's Adam.
#pragma once

#include "af/export.h"

namespace af::train {

// From now on the C library keeps freed memory in the process, as much as it has used at its peak
// (2 GiB more than is in use at most). For the whole process; at the start of a program, as what is
// mapped already stays as it is. Does nothing where the C library is not glibc or malloc is another
// one.
AF_PUBLIC void keep_freed_memory();

}  // namespace af::train
