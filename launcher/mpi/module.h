/* SPDX-License-Identifier: Apache-2.0
 * The C ABI of libaf_mpi_bootstrap.so, the only file of af that links libmpi. C, so that nothing of
 * the C++ runtime crosses a dlopen boundary, and versioned by the symbol's name.
 */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* MPI_Init, all-gather of one text per task, barrier, MPI_Finalize. Collective over the step; once
 * per process. Returns 0, or non-zero with a sentence in `error` (always ended by a NUL).
 * `*all`: the texts one after the other in task order, malloc'd, the caller frees it;
 * `lengths[i]`: bytes of the i-th, an array of `tasks` numbers that the caller gives.
 * A world of another size or another rank than the caller says is an error found before any
 * communication, so it cannot hang. */
int af_mpi_all_gather_v1(int task, int tasks, const char* mine, size_t mine_length, char** all,
                         size_t* lengths, char* error, size_t error_length);

#ifdef __cplusplus
}
#endif
