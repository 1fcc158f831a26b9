// SPDX-License-Identifier: Apache-2.0
// NCCL, loaded when it is first needed. Calls go through the table, and every result is checked
// where it comes: AF_NCCL(comm, comm_finalize(comm)) throws with file, line and NCCL's own words.
#pragma once

#include <nccl.h>

#include <string>

#include "af/communicator.h"

namespace af::nccl {

struct Library {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum;
  decltype(&ncclRedOpDestroy) red_op_destroy;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  // Null before NCCL 2.19. Memory from there can be mapped by the other GPUs of the node.
  ncclResult_t (*mem_alloc)(void**, std::size_t);
  ncclResult_t (*mem_free)(void*);
};

// Throws CommunicatorError (system) if there is no libnccl.so.2, or one before 2.14, the first with
// communicators that do not block.
const Library& library();
std::string version_text();  // "2.28.9"

// Throws CommunicatorError (peer_lost for ncclRemoteError, else system) unless the result is
// ncclSuccess or ncclInProgress, which every call on a communicator that does not block may give.
// `comm` may be null.
ncclResult_t check(ncclResult_t result, ncclComm_t comm, const char* call, const char* file,
                   int line);
#define AF_NCCL(comm, call) \
  ::af::nccl::check(::af::nccl::library().call, comm, "nccl " #call, __FILE__, __LINE__)

}  // namespace af::nccl
