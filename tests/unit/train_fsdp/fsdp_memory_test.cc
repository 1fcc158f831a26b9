// SPDX-License-Identifier: Apache-2.0
// What a rank of a sharded training has in memory: counted, by an allocator in the place of
// libtorch's own for host memory, and by the kernel's list of mappings for what the communicator
// gave.
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/version.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_fsdp/sharded_chain.h"

namespace af::train::test {
namespace {

// Of the tensors that a thread has made, wherever they are freed.
struct Count {
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> peak{0};
  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    if (now > peak) peak = now;
  }
};
thread_local Count* counted_in = nullptr;

struct Header {
  Count* count;
  int64_t bytes;
  char padding[48];  // the tensor is 64-byte aligned
};
static_assert(sizeof(Header) == 64);

class CountingAllocator : public c10::Allocator {
 public:
#if TORCH_VERSION_MAJOR >= 2
  c10::DataPtr allocate(std::size_t bytes) override {
    return make(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
#else
  c10::DataPtr allocate(std::size_t bytes) const override {
    return make(bytes);
  }
#endif

 private:
  static c10::DataPtr make(std::size_t bytes) {
    void* memory = std::aligned_alloc(64, sizeof(Header) + (bytes + 63) / 64 * 64);
    auto* header = static_cast<Header*>(memory);
    header->count = counted_in;
    header->bytes = static_cast<int64_t>(bytes);
    if (header->count != nullptr) header->count->add(header->bytes);
    return {header + 1, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  static void release(void* memory) {
    const auto* header = static_cast<Header*>(memory);
    if (header->count != nullptr) header->count->live -= header->bytes;
    std::free(memory);
  }
};

// Bytes of all buffers of allocate() in this process, each once.
int64_t bytes_of_buffers() {
  std::ifstream maps("/proc/self/maps");
  std::map<std::string, int64_t> by_inode;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:af-buffer") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, rights, offset, device, inode;
    words >> range >> rights >> offset >> device >> inode;
    const std::size_t dash = range.find('-');
    by_inode[inode] = static_cast<int64_t>(std::stoull(range.substr(dash + 1), nullptr, 16) -
                                           std::stoull(range.substr(0, dash), nullptr, 16));
  }
  int64_t sum = 0;
  for (const auto& [inode, bytes] : by_inode) sum += bytes;
  return sum;
}

struct FourLayers : PartImpl {
  explicit FourLayers(int64_t width) {
    for (int i = 0; i < 4; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
  }
  at::Tensor forward(at::Tensor x) override {
    for (torch::nn::Linear& layer : layers) x = at::tanh(layer->forward(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

class FsdpMemory : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    before_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&allocator_, /*priority=*/100);
  }
  void TearDown() override { c10::SetCPUAllocator(before_, /*priority=*/100); }

  static inline CountingAllocator allocator_;  // tensors may outlive the test
  static inline Count counts_[8];
  c10::Allocator* before_ = nullptr;
};

TEST_P(FsdpMemory, IsASixteenthOfTheParametersByTheRanksAndTwoUnits) {
  constexpr int64_t kWidth = 256;
  constexpr int64_t kUnits = 12;
  const int ranks = GetParam();
  const TemporaryDirectory directory;
  with_threads(one_node(ranks), [&](Communicator& world) {
    Count& count = counts_[world.rank()];
    counted_in = &count;
    std::vector<Part> parts;
    for (int64_t i = 0; i < kUnits; ++i) parts.push_back(std::make_shared<FourLayers>(kWidth));
    const auto model = filled_chain(std::move(parts), at::kFloat);
    const int64_t whole = count.live;  // 4 bytes a parameter
    const int64_t unit = whole / kUnits;
    EXPECT_NEAR(static_cast<double>(unit), 4.0 * 4 * kWidth * (kWidth + 1), 100);

    FullyShardedDataParallel fsdp(*model, world, by_parts(*model));
    torch::optim::Adam adam(fsdp.parameters(), torch::optim::AdamOptions(1e-3));
    const at::Tensor x = at::ones({2, kWidth});
    const auto step = [&] {
      fsdp.backward(fsdp.forward([&] { return forward_units(*model, x).square().mean(); }), 2);
      adam.step();
    };
    for (int i = 0; i < 3; ++i) step();  // the units' order is known, Adam has its moments

    const double wanted =
        4.0 * static_cast<double>(whole) / ranks + 2.0 * static_cast<double>(unit);
    world.barrier().synchronize();
    const int64_t buffers = bytes_of_buffers() / ranks;
    count.peak = count.live.load();
    world.barrier().synchronize();
    step();
    const auto taken = static_cast<double>(count.peak + buffers);
    EXPECT_LT(taken, 1.05 * wanted);
    EXPECT_GT(taken, 0.95 * wanted);
    if (world.rank() == 0) RecordProperty("share_of_formula", std::to_string(taken / wanted));

    // A full checkpoint takes no more than a unit.
    fsdp.keep("optimizer", adam);
    const int64_t live = count.live;
    count.peak = live;
    fsdp.save(directory / "state.pt");
    EXPECT_LE(count.peak - live, unit);
    count.peak = live;
    fsdp.load(directory / "state.pt");
    EXPECT_LE(count.peak - live, 2 * (unit / ranks + 1024));  // its moments, and padding
    EXPECT_LE(bytes_of_buffers() / ranks, buffers);
    counted_in = nullptr;
  });
  // All of every parameter, gradient and moment: 12 bytes a parameter in the file.
  EXPECT_GT(std::filesystem::file_size(directory / "state.pt"),
            std::uintmax_t{12} * kUnits * 4 * kWidth * kWidth);
}

INSTANTIATE_TEST_SUITE_P(Ranks, FsdpMemory, testing::Values(2, 4));

}  // namespace
}  // namespace af::train::test
