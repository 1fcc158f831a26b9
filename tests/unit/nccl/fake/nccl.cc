// SPDX-License-Identifier: Apache-2.0
// A libnccl for ranks that are threads of one process, on the fake libcudart. It behaves as a
// communicator that does not block: init is ready when all ranks came, a call gives ncclInProgress
// and its "kernel" gets onto the stream only after it has been polled, the kernel waits on its
// stream for the other ranks, and ncclCommAbort ends it.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/half.h"
#include "tests/unit/nccl/fake/hooks.h"

namespace {

enum class What { all_reduce, broadcast, all_gather, reduce_scatter };

struct Call {
  What what;
  const void* in;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  double factor;
  int root;
};

// The ranks that share a unique id.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, came = 0;
  std::map<long, std::map<int, Call>> arrived;  // operation number -> rank -> call
  std::map<long, bool> done;
};

std::mutex registry_mutex;
std::map<std::string, std::shared_ptr<World>> registry;
std::map<int, int> async_errors;
std::atomic<int> alive{0}, operators{0};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
double read_as(const void* from, std::size_t i) {
  return static_cast<double>(static_cast<const T*>(from)[i]);
}
template <typename T>
void write_as(void* to, std::size_t i, double value) {
  static_cast<T*>(to)[i] = static_cast<T>(value);
}

double read(const void* from, std::size_t i, ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return read_as<std::int8_t>(from, i);
    case ncclUint8:
      return read_as<std::uint8_t>(from, i);
    case ncclInt32:
      return read_as<std::int32_t>(from, i);
    case ncclUint32:
      return read_as<std::uint32_t>(from, i);
    case ncclInt64:
      return read_as<std::int64_t>(from, i);
    case ncclUint64:
      return read_as<std::uint64_t>(from, i);
    case ncclFloat16:
      return af::f16_to_f32(static_cast<const std::uint16_t*>(from)[i]);
    case ncclBfloat16:
      return af::bf16_to_f32(static_cast<const std::uint16_t*>(from)[i]);
    case ncclFloat32:
      return read_as<float>(from, i);
    default:
      return read_as<double>(from, i);
  }
}

void write(void* to, std::size_t i, ncclDataType_t type, double value) {
  switch (type) {
    case ncclInt8:
      return write_as<std::int8_t>(to, i, value);
    case ncclUint8:
      return write_as<std::uint8_t>(to, i, value);
    case ncclInt32:
      return write_as<std::int32_t>(to, i, value);
    case ncclUint32:
      return write_as<std::uint32_t>(to, i, value);
    case ncclInt64:
      return write_as<std::int64_t>(to, i, value);
    case ncclUint64:
      return write_as<std::uint64_t>(to, i, value);
    case ncclFloat16:
      return write_as<std::uint16_t>(to, i, af::f32_to_f16(static_cast<float>(value)));
    case ncclBfloat16:
      return write_as<std::uint16_t>(to, i, af::f32_to_bf16(static_cast<float>(value)));
    case ncclFloat32:
      return write_as<float>(to, i, value);
    default:
      return write_as<double>(to, i, value);
  }
}

// The results of all ranks at once, by the rank that came last: nobody's input is overwritten
// early.
void compute(const std::map<int, Call>& calls) {
  const auto world = calls.size();
  std::vector<std::vector<char>> results;
  for (const auto& [rank, call] : calls) {
    const std::size_t size = bytes_of(call.type);
    std::vector<char> result;
    if (call.what == What::broadcast) {
      const auto* in = static_cast<const char*>(calls.at(call.root).in);
      result.assign(in, in + call.count * size);
    } else if (call.what == What::all_gather) {
      for (const auto& [other, their] : calls) {
        const auto* in = static_cast<const char*>(their.in);
        result.insert(result.end(), in, in + call.count * size);
      }
    } else {
      result.resize(call.count * size);
      const std::size_t offset =
          call.what == What::reduce_scatter ? call.count * static_cast<std::size_t>(rank) : 0;
      for (std::size_t i = 0; i < call.count; ++i) {
        double sum = 0;
        for (const auto& [other, their] : calls) {
          const double value = read(their.in, offset + i, call.type) * their.factor;
          if (other == 0)
            sum = value;
          else if (call.op == ncclMin)
            sum = std::min(sum, value);
          else if (call.op == ncclMax)
            sum = std::max(sum, value);
          else
            sum += value;
        }
        write(result.data(), i, call.type,
              call.op == ncclAvg ? sum / static_cast<double>(world) : sum);
      }
    }
    results.push_back(std::move(result));
  }
  auto result = results.begin();
  for (const auto& [rank, call] : calls) {
    std::memcpy(call.out, result->data(), result->size());
    ++result;
  }
}

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  long issued = 0;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::vector<std::function<void()>> unlaunched;  // polled onto the stream
  int polls = 0;
  std::map<int, double> factors;  // of operators made here
};

namespace {

thread_local int group_depth = 0;

void kernel(const std::shared_ptr<World>& world, const std::shared_ptr<std::atomic<bool>>& aborted,
            long number, int rank, const Call& call) {
  std::unique_lock lock(world->mutex);
  auto& arrived = world->arrived[number];
  arrived[rank] = call;
  if (static_cast<int>(arrived.size()) == world->size) {
    compute(arrived);
    world->done[number] = true;
    world->changed.notify_all();
  }
  world->changed.wait(lock, [&] { return world->done[number] || *aborted; });
}

ncclResult_t issue(ncclComm_t comm, cudaStream_t stream, Call call) {
  const auto made = comm->factors.find(call.op);
  call.factor = made == comm->factors.end() ? 1 : made->second;
  if (made != comm->factors.end()) call.op = ncclSum;
  const long number = comm->issued++;
  comm->unlaunched.push_back(
      [world = comm->world, aborted = comm->aborted, number, rank = comm->rank, call, stream] {
        fake_cuda_enqueue(stream, [=] { kernel(world, aborted, number, rank, call); });
      });
  comm->polls = 3;
  return ncclInProgress;
}

}  // namespace

void fake_nccl_set_async_error(int rank, int result) {
  std::lock_guard lock(registry_mutex);
  async_errors[rank] = result;
}
int fake_nccl_alive() {
  return alive;
}
int fake_nccl_operators() {
  return operators;
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{1};
  std::memset(id->internal, '\xf0', sizeof id->internal);
  const int number = next++;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0 || config->magic != 0xcafebeef) return ncclInvalidArgument;
  std::shared_ptr<World> world;
  {
    std::lock_guard lock(registry_mutex);
    auto& found = registry[std::string(id.internal, sizeof id.internal)];
    if (!found) found = std::make_shared<World>();
    world = found;
  }
  std::lock_guard lock(world->mutex);
  world->size = size;
  ++world->came;
  *comm = new ncclComm;
  (*comm)->world = world;
  (*comm)->rank = rank;
  ++alive;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  {
    std::lock_guard lock(registry_mutex);
    const auto error = async_errors.find(comm->rank);
    if (error != async_errors.end() && error->second != ncclSuccess) {
      *state = static_cast<ncclResult_t>(error->second);
      return ncclSuccess;
    }
  }
  {
    std::lock_guard lock(comm->world->mutex);
    *state = comm->world->came < comm->world->size ? ncclInProgress : ncclSuccess;
  }
  if (*state == ncclSuccess && comm->polls > 0) {
    if (--comm->polls > 0) {
      *state = ncclInProgress;
    } else {
      for (const auto& launch : comm->unlaunched) launch();
      comm->unlaunched.clear();
    }
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  --alive;
  operators -= static_cast<int>(comm->factors.size());
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    std::lock_guard lock(comm->world->mutex);
    *comm->aborted = true;
    comm->world->changed.notify_all();
  }
  return ncclCommDestroy(comm);
}
const char* ncclGetErrorString(ncclResult_t) {
  return "fake NCCL error";
}
const char* ncclGetLastError(ncclComm_t) {
  return "";
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  static std::atomic<int> next{ncclNumOps};
  const int made = next++;
  *op = static_cast<ncclRedOp_t>(made);
  comm->factors[made] = read(scalar, 0, type);
  ++operators;
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  operators -= static_cast<int>(comm->factors.erase(op));
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream, {What::all_reduce, in, out, count, type, op, 1, 0});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream, {What::broadcast, in, out, count, type, ncclSum, 1, root});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream, {What::all_gather, in, out, count, type, ncclSum, 1, 0});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return issue(comm, stream, {What::reduce_scatter, in, out, count, type, op, 1, 0});
}
ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return group_depth-- > 0 ? ncclSuccess : ncclInvalidUsage;
}
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes) {
  return cudaMalloc(pointer, bytes) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* pointer) {
  return cudaFree(pointer) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

}  // extern "C"
