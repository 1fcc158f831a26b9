// SPDX-License-Identifier: Apache-2.0
// The C API: unwraps handles, and turns every exception into a code and this thread's text.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "af/af.h"
#include "af/communicator.h"
#include "collectives/c_handles.h"

using af::c_api::guarded;
using af::c_api::require;

struct af_store {
  std::shared_ptr<af::Store> store;
};
struct af_work {
  af::Work work;
};
struct af_buffer {
  af::Buffer buffer;
};

namespace {

struct LastError {
  std::string text;
  std::vector<int> ranks;
};
thread_local LastError last;

// Issues an operation: blocking if the caller wants no handle.
template <typename Call>
int issue(af_communicator* communicator, double pre_scale, void* stream, af_work** work,
          Call call) {
  return guarded([&] {
    require(communicator, "the communicator");
    const af::CallOptions options{stream, pre_scale, work == nullptr};
    af::Work issued = call(communicator->communicator, options);
    if (work != nullptr) *work = new af_work{std::move(issued)};
  });
}

}  // namespace

namespace af::c_api {

int keep(int code, const char* text, const std::vector<int>& ranks) noexcept {
  try {
    last.text = text;
    last.ranks = ranks;
  } catch (...) {
    last.text.clear();  // out of memory: the code remains
  }
  return code;
}

void require(const void* pointer, const char* what) {
  if (pointer != nullptr) return;
  throw af::CommunicatorError(af::CommunicatorError::Kind::invalid_argument,
                              std::string(what) + " is NULL");
}

}  // namespace af::c_api

int af_abi_version(void) {
  return AF_ABI_VERSION;
}
const char* af_version(void) {
  return AF_VERSION;
}
const char* af_last_error(void) {
  return last.text.c_str();
}

int af_last_error_ranks(int* ranks, int capacity) {
  const int count = int(last.ranks.size());
  if (ranks != nullptr && capacity > 0) {
    std::copy_n(last.ranks.begin(), std::min(count, capacity), ranks);
  }
  return count;
}

int af_store_in_process(af_store** store) {
  return guarded([&] {
    require(store, "store");
    *store = new af_store{af::make_in_process_store()};
  });
}

int af_store_session(const char* socket, af_store** store) {
  return guarded([&] {
    require(store, "store");
    require(socket, "socket");
    *store = new af_store{af::make_session_store(socket)};
  });
}

int af_store_tcp(const char* host, int port, int rank, int64_t timeout_ms, af_store** store) {
  return guarded([&] {
    require(store, "store");
    require(host, "host");
    *store =
        new af_store{af::make_tcp_store(host, port, rank, std::chrono::milliseconds(timeout_ms))};
  });
}

int af_store_set(af_store* store, const char* key, const char* value) {
  return guarded([&] {
    require(store, "store");
    require(key, "key");
    require(value, "value");
    store->store->set(key, value);
  });
}

int af_store_get(af_store* store, const char* key, int64_t timeout_ms, char* buffer,
                 size_t capacity) {
  return guarded([&] {
    require(store, "store");
    require(key, "key");
    require(buffer, "buffer");
    const std::string value = store->store->get(key, std::chrono::milliseconds(timeout_ms));
    if (value.size() + 1 > capacity) {
      throw af::CommunicatorError(af::CommunicatorError::Kind::invalid_argument,
                                  std::string("the value of ") + key + " needs " +
                                      std::to_string(value.size() + 1) + " bytes, the buffer has " +
                                      std::to_string(capacity));
    }
    std::memcpy(buffer, value.c_str(), value.size() + 1);
  });
}

void af_store_release(af_store* store) {
  delete store;
}

int af_communicator_from_environment(af_communicator** communicator) {
  return af_communicator_from_environment_with(nullptr, -1, -1, -2, communicator);
}

int af_communicator_from_environment_with(const char* name, int64_t generation, int64_t timeout_ms,
                                          int device, af_communicator** communicator) {
  return guarded([&] {
    require(communicator, "communicator");
    af::Options options = af::Communicator::options_from_environment();
    if (name != nullptr) options.name = name;
    if (generation >= 0) options.generation = std::uint64_t(generation);
    if (timeout_ms >= 0) options.timeout = std::chrono::milliseconds(timeout_ms);
    if (device >= -1) options.device = device;
    *communicator = new af_communicator{std::make_shared<af::Communicator>(options)};
  });
}

int af_communicator_create(int rank, int world_size, uint64_t generation, int64_t timeout_ms,
                           int backend, const char* name, int device, af_store* store,
                           af_communicator** communicator) {
  return guarded([&] {
    require(communicator, "communicator");
    af::Options options;
    options.rank = rank;
    options.world_size = world_size;
    options.generation = generation;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    options.backend = af::BackendKind(backend);
    options.device = device;
    if (name != nullptr) options.name = name;
    if (store != nullptr) options.store = store->store;
    *communicator = new af_communicator{std::make_shared<af::Communicator>(options)};
  });
}

void af_communicator_destroy(af_communicator* communicator) {
  delete communicator;
}

int af_rank(const af_communicator* communicator) {
  return communicator->communicator.rank();
}
int af_world_size(const af_communicator* communicator) {
  return communicator->communicator.world_size();
}
uint64_t af_generation(const af_communicator* communicator) {
  return communicator->communicator.generation();
}
int af_backend_of(const af_communicator* communicator) {
  return int(communicator->communicator.backend());
}
const char* af_description(af_communicator* communicator) {
  return communicator->description.c_str();
}

int af_all_reduce(af_communicator* communicator, const void* in, void* out, size_t count, int type,
                  int op, double pre_scale, void* stream, af_work** work) {
  return issue(communicator, pre_scale, stream, work, [&](auto& world, const auto& options) {
    return world.all_reduce(in, out, count, af::DataType(type), af::ReduceOp(op), options);
  });
}

int af_broadcast(af_communicator* communicator, const void* in, void* out, size_t count, int type,
                 int root, void* stream, af_work** work) {
  return issue(communicator, 1.0, stream, work, [&](auto& world, const auto& options) {
    return world.broadcast(in, out, count, af::DataType(type), root, options);
  });
}

int af_all_gather(af_communicator* communicator, const void* in, void* out, size_t count, int type,
                  void* stream, af_work** work) {
  return issue(communicator, 1.0, stream, work, [&](auto& world, const auto& options) {
    return world.all_gather(in, out, count, af::DataType(type), options);
  });
}

int af_reduce_scatter(af_communicator* communicator, const void* in, void* out, size_t count,
                      int type, int op, double pre_scale, void* stream, af_work** work) {
  return issue(communicator, pre_scale, stream, work, [&](auto& world, const auto& options) {
    return world.reduce_scatter(in, out, count, af::DataType(type), af::ReduceOp(op), options);
  });
}

int af_barrier(af_communicator* communicator, void* stream, af_work** work) {
  return issue(communicator, 1.0, stream, work,
               [&](auto& world, const auto& options) { return world.barrier(options); });
}

int af_group_begin(void) {
  return guarded([] { af::group_begin(); });
}
int af_group_end(void) {
  return guarded([] { af::group_end(); });
}

int af_work_done(const af_work* work) {
  return work == nullptr || work->work.done() ? 1 : 0;
}

int af_work_wait(af_work* work, void* stream) {
  return guarded([&] {
    require(work, "work");
    work->work.wait(stream);
  });
}

int af_work_synchronize(af_work* work) {
  return guarded([&] {
    require(work, "work");
    work->work.synchronize();
  });
}

uint64_t af_work_generation(const af_work* work) {
  return work->work.generation();
}
void af_work_release(af_work* work) {
  delete work;
}

int af_allocate(af_communicator* communicator, size_t bytes, af_buffer** buffer) {
  return guarded([&] {
    require(communicator, "the communicator");
    require(buffer, "buffer");
    *buffer = new af_buffer{communicator->communicator.allocate(bytes)};
  });
}

void* af_buffer_data(const af_buffer* buffer) {
  return buffer->buffer.data();
}
size_t af_buffer_bytes(const af_buffer* buffer) {
  return buffer->buffer.bytes();
}
void af_buffer_release(af_buffer* buffer) {
  delete buffer;
}

int af_abort(af_communicator* communicator, const char* reason) {
  return guarded([&] {
    require(communicator, "the communicator");
    communicator->communicator.abort(reason == nullptr ? "aborted by the program" : reason);
  });
}
