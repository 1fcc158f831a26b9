// SPDX-License-Identifier: Apache-2.0
#include "train/parallel/stage_devices.h"

#include <gtest/gtest.h>

#include "common/error.h"

namespace af::train {
namespace {

const at::Device kCpu{at::kCPU};
at::Device gpu(int index) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

TEST(StageDevices, AreRefusedInWords) {
  const struct {
    std::vector<at::Device> devices;
    StageDevices process;
    const char* words;  // nullptr: fine
  } cases[] = {
      {{kCpu, kCpu}, {0, 0}, nullptr},
      {{kCpu, kCpu}, {0, 1}, nullptr},
      {{gpu(0), gpu(1)}, {2, 2}, nullptr},
      {{gpu(0), gpu(1)}, {2, 0}, nullptr},
      {{gpu(1), gpu(1)}, {2, 1}, nullptr},
      {{gpu(0), kCpu}, {1, 1}, nullptr},
      {{gpu(0), gpu(1)},
       {1, 1},
       "stage second is to be on cuda:1, and this process has 1 GPU: ask "
       "for two with --af-gpus-per-worker=2"},
      {{gpu(0), gpu(5)}, {2, 2}, "stage second is to be on cuda:5, and this process has 2 GPUs"},
      {{gpu(0), gpu(1)},
       {0, 2},
       "stage first is to be on cuda:0, and this process has no GPU that "
       "libtorch can use"},
      {{gpu(0), gpu(1)},
       {4, 1},
       "the stages are on 2 GPUs, and a worker of this job has 1: the "
       "others are other ranks': ask for two with --af-gpus-per-worker=2"},
  };
  for (const auto& c : cases) {
    const auto fault = fault_of_devices({"first", "second"}, c.devices, c.process);
    if (c.words == nullptr)
      EXPECT_FALSE(fault) << *fault;
    else
      EXPECT_EQ(fault.value_or("fine").find(c.words), 0U) << fault.value_or("fine");
  }
}

TEST(StageDevices, AreTheWorkersGpusOrTheCpu) {
  EXPECT_EQ(choose_stage_devices(2, {0, 2}), (std::vector{kCpu, kCpu}));
  EXPECT_EQ(choose_stage_devices(3, {0, 0}), (std::vector{kCpu, kCpu, kCpu}));
  EXPECT_EQ(choose_stage_devices(2, {2, 2}), (std::vector{gpu(0), gpu(1)}));
  EXPECT_THROW(choose_stage_devices(2, {1, 1}), Error);
  EXPECT_THROW(choose_stage_devices(2, {4, 1}), Error);
}

}  // namespace
}  // namespace af::train
