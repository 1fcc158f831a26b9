// SPDX-License-Identifier: Apache-2.0
// The nccl backend's logic on the fake libraries: results, streams, groups.
#include <cstring>

#include "perf/pattern.h"
#include "perf/words.h"
#include "tests/unit/nccl/fake/hooks.h"
#include "tests/unit/nccl/ranks.h"

namespace af::nccl {
namespace {

constexpr int kWorld = 3;
constexpr std::size_t kCount = 33;

std::size_t wrong_elements(const Operation& o, const char* out, int rank) {
  const std::size_t part = o.count * size_of(o.type);
  switch (o.kind) {
    case OperationKind::all_reduce:
      return perf::count_wrong_reduced(out, o.count, o.type, o.op, kWorld);
    case OperationKind::reduce_scatter:
      return perf::count_wrong_reduced(out, o.count, o.type, o.op, kWorld,
                                       static_cast<std::size_t>(rank) * o.count);
    case OperationKind::broadcast:
      return perf::count_wrong_copied(out, o.count, o.type, o.root);
    case OperationKind::all_gather: {
      std::size_t wrong = 0;
      for (int r = 0; r < kWorld; ++r) {
        wrong +=
            perf::count_wrong_copied(out + static_cast<std::size_t>(r) * part, o.count, o.type, r);
      }
      return wrong;
    }
    case OperationKind::barrier:
      break;
  }
  return 0;
}

TEST(NcclBackend, EveryOperationAndTypeGivesThePlainLoopsResult) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 1, 2}, [&](int rank) {
    NcclBackend backend(options_of(rank, kWorld, store));
    for (const OperationKind kind : perf::parse_operations("all")) {
      for (const DataType type : perf::parse_types("all")) {
        for (const ReduceOp op : perf::parse_reductions("all")) {
          // Not the fake's business: it divides in double where NCCL truncates.
          if (op == ReduceOp::avg && size_of(type) != 4 && size_of(type) != 8) continue;
          Operation o;
          o.kind = kind;
          o.type = type;
          o.op = op;
          o.count = kCount;
          o.root = 1;
          const auto in = backend.allocate(input_bytes(o, kWorld) + 1);
          const auto out = backend.allocate(output_bytes(o, kWorld) + 1);
          perf::fill(in->data(), input_bytes(o, kWorld) / size_of(type), type, rank);
          o.in = in->data();
          o.out = out->data();
          submit_one(backend, o)->synchronize();
          EXPECT_EQ(wrong_elements(o, static_cast<char*>(out->data()), rank), 0u)
              << to_string(o) << " on rank " << rank;
        }
      }
    }
  });
  EXPECT_TRUE(errors.empty()) << errors.begin()->second.what();
  EXPECT_EQ(fake_nccl_alive(), 0);
}

TEST(NcclBackend, PreScaleMultipliesBeforeTheSum) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 1}, [&](int rank) {
    NcclBackend backend(options_of(rank, 2, store));
    for (const auto& [op, want] : {std::pair{ReduceOp::sum, 11.0f}, {ReduceOp::avg, 5.5f}}) {
      float value = rank == 0 ? 3 : 20;
      Operation o;
      o.kind = OperationKind::all_reduce;
      o.type = DataType::f32;
      o.op = op;
      o.in = o.out = &value;
      o.count = 1;
      o.pre_scale = rank == 0 ? 2.0 : 0.25;  // 3 * 2 + 20 / 4
      submit_one(backend, o)->synchronize();
      EXPECT_FLOAT_EQ(value, want);
    }
    EXPECT_EQ(backend.submit({}, false).size(), 0u);
  });
  EXPECT_TRUE(errors.empty()) << errors.begin()->second.what();
  EXPECT_EQ(fake_nccl_operators(), 0);
}

TEST(NcclBackend, WhatNcclCannotDoIsRefusedAndTheCommunicatorStaysGood) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 1}, [&](int rank) {
    NcclBackend backend(options_of(rank, 2, store));
    float value = 1;
    Operation o;
    o.kind = OperationKind::all_reduce;
    o.type = DataType::f32;
    o.op = ReduceOp::max;
    o.in = o.out = &value;
    o.count = 1;
    o.pre_scale = 0.5;
    try {
      submit_one(backend, o);
      ADD_FAILURE() << "a pre-scale with max was taken";
    } catch (const CommunicatorError& error) {
      EXPECT_EQ(error.kind(), CommunicatorError::Kind::invalid_argument);
    }
    o.op = ReduceOp::sum;
    submit_one(backend, o)->synchronize();
    EXPECT_FLOAT_EQ(value, 1);
  });
  EXPECT_TRUE(errors.empty()) << errors.begin()->second.what();
}

// The caller's stream is busy when the operation is issued: the operation must wait for it, and a
// later use on the stream for the operation.
TEST(NcclBackend, KeepsTheOrderOfTheCallersStream) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 1}, [&](int rank) {
    NcclBackend backend(options_of(rank, 2, store));
    cuda::DeviceGuard guard(rank);
    cudaStream_t stream = nullptr;
    AF_CUDA(stream_create_with_flags(&stream, cudaStreamNonBlocking));
    double value = -1, seen = 0;
    std::atomic<bool> may_write{false};
    fake_cuda_enqueue(stream, [&] {
      while (!may_write) std::this_thread::yield();
      value = rank + 1;
    });
    Operation o;
    o.kind = OperationKind::all_reduce;
    o.type = DataType::f64;
    o.in = o.out = &value;
    o.count = 1;
    o.stream = stream;
    const auto work = submit_one(backend, o);
    EXPECT_FALSE(work->done());
    work->wait(stream);  // returns at once: the wait is on the stream
    fake_cuda_enqueue(stream, [&] { seen = value; });
    EXPECT_FALSE(work->done());
    may_write = true;
    AF_CUDA(stream_synchronize(stream));
    EXPECT_EQ(seen, 3.0);
    EXPECT_TRUE(work->done());
    AF_CUDA(stream_destroy(stream));
  });
  EXPECT_TRUE(errors.empty()) << errors.begin()->second.what();
}

TEST(NcclBackend, OneThreadDrivesTwoRanksInAGroup) {
  const auto store = make_in_process_store();
  std::map<int, std::unique_ptr<NcclBackend>> backends;
  std::mutex mutex;
  run_ranks({0, 1}, [&](int rank) {
    auto backend = std::make_unique<NcclBackend>(options_of(rank, 2, store));
    std::lock_guard lock(mutex);
    backends[rank] = std::move(backend);
  });
  ASSERT_EQ(backends.size(), 2u);
  double values[2][2] = {{1, 2}, {10, 20}};
  std::vector<std::shared_ptr<WorkState>> works;
  for (int rank = 0; rank < 2; ++rank) {
    Operation both[2];
    for (int i = 0; i < 2; ++i) {
      both[i].kind = OperationKind::all_reduce;
      both[i].type = DataType::f64;
      both[i].in = both[i].out = &values[rank][i];
      both[i].count = 1;
    }
    for (auto& work : backends[rank]->submit(both, true)) works.push_back(work);
  }
  for (const auto& work : works) work->synchronize();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(values[rank][0], 11);
    EXPECT_EQ(values[rank][1], 22);
  }
}

TEST(NcclBackend, AllocatesZeroedMemory) {
  NcclBackend alone(options_of(0, 1, nullptr));
  const auto memory = alone.allocate(10000);
  const std::vector<char> zeros(10000);
  EXPECT_EQ(memory->bytes(), 10000u);
  EXPECT_EQ(std::memcmp(memory->data(), zeros.data(), zeros.size()), 0);
}

}  // namespace
}  // namespace af::nccl
