// SPDX-License-Identifier: Apache-2.0
// The inventory by NVML, against a fake of the library: cards, and MIG instances with their card.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "launcher/gpu_inventory.h"

namespace af {
namespace {

TEST(NvmlGpus, CardsAndInstancesInSlurmsOrder) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto library = self.parent_path().parent_path() / "fake-nvml" / "libnvidia-ml.so.1";
  // A library that is loaded already answers to its name, so that the next dlopen finds this one.
  ASSERT_NE(::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  const std::unique_ptr<GpuSource> source = nvml_gpu_source();
  ASSERT_NE(source, nullptr);
  const std::vector<Gpu> gpus = source->all_gpus();
  ASSERT_EQ(gpus.size(), 3u);

  EXPECT_EQ(gpus[0].uuid, "GPU-t4");
  EXPECT_EQ(gpus[0].parent_uuid, "GPU-t4");
  EXPECT_EQ(gpus[0].type, "tesla_t4");
  EXPECT_EQ(gpus[0].index, 0);
  EXPECT_EQ(gpus[0].memory_gb, 16);
  EXPECT_EQ(gpus[0].driver, "535.129.03");
  EXPECT_FALSE(gpus[0].mig);
  EXPECT_TRUE(gpus[0].near_cpus.empty());  // no such PCI device here

  EXPECT_EQ(gpus[1].uuid, "MIG-first");
  EXPECT_EQ(gpus[1].parent_uuid, "GPU-a100");
  EXPECT_EQ(gpus[1].type, "1g.5gb");
  EXPECT_EQ(gpus[1].index, 1);
  EXPECT_EQ(gpus[1].memory_gb, 5);
  EXPECT_TRUE(gpus[1].mig);
  EXPECT_EQ(gpus[2].uuid, "MIG-second");
}

}  // namespace
}  // namespace af
