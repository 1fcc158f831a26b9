// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/library.h"

#include <dlfcn.h>

namespace af::nccl {
namespace {

using Kind = CommunicatorError::Kind;

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kOldest = 21400;

template <typename Function>
void load(void* handle, const char* name, Function& function, bool required = true) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function && required) {
    throw CommunicatorError(Kind::system, std::string(kLibrary) + " has no " + name +
                                              ": it is older than 2.14; install a newer NCCL");
  }
}

Library load_all() {
  // A libnccl that the program has loaded already (torch brings one) is found by its name, too.
  void* handle = dlopen(kLibrary, RTLD_NOW);
  if (!handle) {
    throw CommunicatorError(Kind::system,
                            std::string("cannot load ") + kLibrary + ": " + dlerror() +
                                "; install NCCL or add its directory to LD_LIBRARY_PATH, or use "
                                "backend local");
  }
  Library l{};
  load(handle, "ncclGetVersion", l.get_version);
  load(handle, "ncclGetUniqueId", l.get_unique_id);
  load(handle, "ncclCommInitRankConfig", l.comm_init_rank_config);
  load(handle, "ncclCommGetAsyncError", l.comm_get_async_error);
  load(handle, "ncclCommFinalize", l.comm_finalize);
  load(handle, "ncclCommDestroy", l.comm_destroy);
  load(handle, "ncclCommAbort", l.comm_abort);
  load(handle, "ncclGetErrorString", l.get_error_string);
  load(handle, "ncclGetLastError", l.get_last_error);
  load(handle, "ncclRedOpCreatePreMulSum", l.red_op_create_pre_mul_sum);
  load(handle, "ncclRedOpDestroy", l.red_op_destroy);
  load(handle, "ncclAllReduce", l.all_reduce);
  load(handle, "ncclBroadcast", l.broadcast);
  load(handle, "ncclAllGather", l.all_gather);
  load(handle, "ncclReduceScatter", l.reduce_scatter);
  load(handle, "ncclGroupStart", l.group_start);
  load(handle, "ncclGroupEnd", l.group_end);
  load(handle, "ncclMemAlloc", l.mem_alloc, false);
  load(handle, "ncclMemFree", l.mem_free, false);
  int version = 0;
  if (l.get_version(&version) != ncclSuccess || version < kOldest) {
    throw CommunicatorError(Kind::system, std::string(kLibrary) + " is version code " +
                                              std::to_string(version) +
                                              "; 2.14 or later is needed");
  }
  return l;
}

}  // namespace

const Library& library() {
  static const Library loaded = load_all();
  return loaded;
}

std::string version_text() {
  int version = 0;
  if (library().get_version(&version) != ncclSuccess) return "unknown";
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

ncclResult_t check(ncclResult_t result, ncclComm_t comm, const char* call, const char* file,
                   int line) {
  if (result == ncclSuccess || result == ncclInProgress) return result;
  std::string text = std::string(call) + ": " + library().get_error_string(result);
  const char* detail = library().get_last_error(comm);
  if (detail && *detail) text += std::string(", ") + detail;
  const Kind kind = result == ncclRemoteError ? Kind::peer_lost : Kind::system;
  throw CommunicatorError(
      kind, text + " (" + file + ":" + std::to_string(line) + "); NCCL_DEBUG=WARN shows more");
}

}  // namespace af::nccl
