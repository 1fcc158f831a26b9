// SPDX-License-Identifier: Apache-2.0
// Staging of device memory: a fake operation on the host sees what was on the device, after the
// stream's earlier work, and its result is on the device in the right place.
#include <atomic>
#include <cstring>
#include <numeric>

#include "collectives/cuda/runtime.h"
#include "collectives/device_staging.h"
#include "tests/unit/nccl/fake/hooks.h"
#include "tests/unit/nccl/ranks.h"

namespace af::nccl {
namespace {

class HostMemory final : public Memory {
 public:
  explicit HostMemory(std::size_t bytes) : bytes_(bytes) {}
  void* data() const override { return bytes_.data(); }
  std::size_t bytes() const override { return bytes_.size(); }

 private:
  mutable std::vector<char> bytes_;
};

// Rank 1 of a world of 3.
struct StagingTest : testing::Test {
  StagingTest() {
    Options options = options_of(1, 3, nullptr);
    options.backend = BackendKind::local;
    staging = make_device_staging(options, [this](std::size_t bytes) {
      ++allocations;
      return std::make_shared<HostMemory>(bytes);
    });
    std::iota(in.begin(), in.end(), 1);
  }

  Operation operation(OperationKind kind, std::size_t count) {
    Operation o;
    o.kind = kind;
    o.type = DataType::i32;
    o.count = count;
    o.in = in.data();
    o.out = out.data();
    return o;
  }

  std::unique_ptr<DeviceStaging> staging;
  int allocations = 0;
  std::vector<std::int32_t> in = std::vector<std::int32_t>(12), out = std::vector<std::int32_t>(12);
};

TEST_F(StagingTest, RunsInPlaceOnTheHost) {
  staging->run(operation(OperationKind::all_reduce, 12), staging->mark(nullptr),
               [&](const Operation& o) {
                 EXPECT_EQ(o.in, o.out);
                 EXPECT_NE(o.in, in.data());
                 auto* values = static_cast<std::int32_t*>(o.out);
                 for (int i = 0; i < 12; ++i) values[i] *= 10;
               });
  for (int i = 0; i < 12; ++i) EXPECT_EQ(out[i], 10 * (i + 1));
  EXPECT_EQ(in[0], 1);
}

TEST_F(StagingTest, GatherAndScatterUseThisRanksPart) {
  staging->run(operation(OperationKind::all_gather, 4), nullptr, [&](const Operation& o) {
    auto* all = static_cast<std::int32_t*>(o.out);
    EXPECT_EQ(o.in, all + 4);
    EXPECT_EQ(all[4], 1);
    all[0] = 100;
    all[11] = 111;
  });
  EXPECT_EQ(out[0], 100);
  EXPECT_EQ(out[4], 1);
  EXPECT_EQ(out[7], 4);
  EXPECT_EQ(out[11], 111);
  staging->run(operation(OperationKind::reduce_scatter, 4), nullptr, [&](const Operation& o) {
    const auto* all = static_cast<const std::int32_t*>(o.in);
    EXPECT_EQ(o.out, all + 4);
    EXPECT_EQ(all[11], 12);
  });
  EXPECT_EQ(out[0], 5);  // element 4 of the input, where rank 1's part begins
  EXPECT_EQ(out[3], 8);
  EXPECT_EQ(allocations, 1);  // the room is kept
}

TEST_F(StagingTest, OnlyTheRootOfABroadcastIsRead) {
  Operation o = operation(OperationKind::broadcast, 12);
  o.in = nullptr;
  o.root = 0;
  staging->run(o, nullptr, [](const Operation& staged) {
    std::memset(staged.out, 0, 12 * sizeof(std::int32_t));
  });
  EXPECT_EQ(out[5], 0);
}

TEST_F(StagingTest, WaitsForTheStreamOfTheMark) {
  cuda::DeviceGuard guard(1);
  cudaStream_t stream = nullptr;
  AF_CUDA(stream_create_with_flags(&stream, cudaStreamNonBlocking));
  std::atomic<bool> go{false};
  fake_cuda_enqueue(stream, [&] {
    while (!go) std::this_thread::yield();
    in[0] = 77;
  });
  const auto mark = staging->mark(stream);
  go = true;
  staging->run(operation(OperationKind::all_reduce, 12), mark, [](const Operation&) {});
  EXPECT_EQ(out[0], 77);
  AF_CUDA(stream_destroy(stream));
}

TEST_F(StagingTest, GrowsAndAllocatesOnTheDevice) {
  std::vector<std::int32_t> large(1 << 19, 3), result(1 << 19);
  Operation o = operation(OperationKind::all_reduce, large.size());
  o.in = large.data();
  o.out = result.data();
  staging->run(operation(OperationKind::all_reduce, 12), nullptr, [](const Operation&) {});
  staging->run(o, nullptr, [](const Operation&) {});
  EXPECT_EQ(result.back(), 3);
  EXPECT_EQ(allocations, 2);
  const auto memory = staging->allocate(5000);
  EXPECT_EQ(static_cast<char*>(memory->data())[4999], 0);
}

}  // namespace
}  // namespace af::nccl
