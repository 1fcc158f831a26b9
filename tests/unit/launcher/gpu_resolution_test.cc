// SPDX-License-Identifier: Apache-2.0
// What the variables of Slurm mean for a list of GPUs (cases B07, B12).
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "common/error.h"
#include "launcher/gpu_inventory.h"

namespace af {
namespace {

Gpu card(int index) {
  Gpu gpu;
  gpu.uuid = "GPU-" + std::to_string(index);
  gpu.parent_uuid = gpu.uuid;
  gpu.index = index;
  return gpu;
}
Gpu slice(int parent, int number) {
  Gpu gpu = card(parent);
  gpu.uuid = "MIG-" + std::to_string(number);
  gpu.mig = true;
  return gpu;
}
std::vector<Gpu> cards(int count) {
  std::vector<Gpu> result;
  result.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) result.push_back(card(i));
  return result;
}

std::string names(const std::vector<Gpu>& gpus) {
  std::string result;
  for (const Gpu& gpu : gpus)
    result +=
        (result.empty() ? "" : " ") + (gpu.uuid.empty() ? std::to_string(gpu.index) : gpu.uuid);
  return result;
}

struct Row {
  const char* what;
  std::vector<Gpu> all;
  SlurmGpuEnvironment environment;
  const char* gpus;
  const char* warning;  // part of the only one; nullptr: none
};

SlurmGpuEnvironment slurm(std::optional<std::string> cuda, std::optional<std::string> step,
                          std::optional<std::string> job = std::nullopt,
                          std::optional<std::vector<int>> detail = std::nullopt) {
  return {true, std::move(cuda), std::move(step), std::move(job), std::move(detail)};
}
const std::optional<std::string> kUnset;
const std::vector<Gpu> kSlices = {slice(0, 0), slice(0, 1), slice(1, 2), slice(1, 3)};

class ResolveGpus : public testing::TestWithParam<Row> {};

TEST_P(ResolveGpus, Table) {
  const Row& row = GetParam();
  const GpuResolution found = resolve_gpus(row.all, row.environment);
  EXPECT_EQ(names(found.gpus), row.gpus) << row.what;
  if (row.warning == nullptr) {
    EXPECT_TRUE(found.warnings.empty()) << row.what << ": " << found.warnings.front();
  } else {
    ASSERT_EQ(found.warnings.size(), 1u) << row.what;
    EXPECT_NE(found.warnings[0].find(row.warning), std::string::npos) << found.warnings[0];
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ResolveGpus,
    testing::Values(
        Row{"whole node", cards(2), slurm("0,1", "0,1"), "GPU-0 GPU-1", nullptr},
        Row{"a part, not constrained", cards(4), slurm("2,3", "2,3"), "GPU-2 GPU-3", nullptr},
        Row{"constrained: the driver counts from 0", cards(1), slurm("0", "3"), "GPU-0", nullptr},
        Row{"UUIDs of slices", kSlices, slurm("MIG-2,MIG-1", "1,2"), "MIG-2 MIG-1", nullptr},
        Row{"numbers of slices", kSlices, slurm("1,2", "1,2"), "MIG-1 MIG-2", nullptr},
        Row{"only the step's numbers", cards(4), slurm("", "1"), "GPU-1", nullptr},
        Row{"only the job's numbers", cards(4), slurm("", kUnset, "1-2"), "GPU-1 GPU-2", nullptr},
        Row{"the step's come before the job's", cards(4), slurm("", "1", "0-3"), "GPU-1", nullptr},
        Row{"only the job's detail", cards(4), slurm(kUnset, kUnset, kUnset, {{3}}), "GPU-3",
            "can see all 4"},
        Row{"B12: sees all, variable unset", cards(4), slurm(kUnset, "2"), "GPU-2",
            "can see all 4 GPUs of the node, Slurm gave it 1"},
        Row{"B12: variable names more than given", cards(4), slurm("0,1,2,3", "2"), "GPU-2",
            "using GPU-2 only"},
        Row{"B07: a task's own GPU of the step's", cards(4), slurm("3", "2,3"), "GPU-3", nullptr},
        Row{"variable names others than given", cards(4), slurm("0", "2"), "GPU-2",
            "names GPU-0, Slurm gave GPU-2"},
        Row{"gres.conf has more than the driver", cards(2), slurm("", "5"), "",
            "number 5 of the node, but the driver shows 2"},
        Row{"unknown UUID", cards(1), slurm("MIG-9", "0"), "GPU-0",
            "which this node does not show"},
        Row{"a job without GPUs sees all", cards(4), slurm(kUnset, kUnset), "", nullptr},
        Row{"no files", cards(4), slurm("NoDevFiles", kUnset), "", nullptr},
        Row{"nothing known but numbers", {}, slurm("0,1", "4,5"), "0 1", nullptr},
        Row{"nothing known, variable empty", {}, slurm("", "4,5"), "4 5", nullptr},
        Row{"nothing known, too many named",
            {},
            slurm("0,1,2", "0,1"),
            "0 1",
            "names 3 GPUs, Slurm gave 2"},
        Row{"nothing known, UUIDs", {}, slurm("MIG-a,MIG-b", "0,1"), "MIG-a MIG-b", nullptr},
        Row{"outside of Slurm", cards(2), {}, "GPU-0 GPU-1", nullptr},
        Row{"outside, by the person", cards(2), {false, "1", kUnset, kUnset, {}}, "GPU-1", nullptr},
        Row{"outside, none by the person", cards(2), {false, "", kUnset, kUnset, {}}, "", nullptr},
        Row{"beginning of a UUID",
            {card(7)},
            {false, "GPU-", kUnset, kUnset, {}},
            "GPU-7",
            nullptr}));

TEST(ResolveGpusDetail, BareUuidsTellTheirKind) {
  const GpuResolution found = resolve_gpus({}, slurm("MIG-a", kUnset));
  ASSERT_EQ(found.gpus.size(), 1u);
  EXPECT_TRUE(found.gpus[0].mig);
  EXPECT_EQ(found.gpus[0].parent_uuid, "");  // the card is not known, and must not look as if
}

TEST(JobDetailGpus, NumbersOfOneNode) {
  const std::string text =
      "JobId=7 JobName=x\n   JOB_GRES=gpu:t4:3\n"
      "     Nodes=n[1-2] CPU_IDs=0-7 Mem=65536 GRES=gpu:t4:1(IDX:1)\n"
      "     Nodes=n05,m3 CPU_IDs=0-7 Mem=65536 GRES=gpu:t4:2(IDX:0-1),gpu:1g.5gb:1(IDX:3)\n"
      "     Nodes=n9 CPU_IDs=0-7 Mem=1 GRES=\n";
  EXPECT_EQ(job_detail_gpus(text, "n2"), std::vector<int>({1}));
  EXPECT_EQ(job_detail_gpus(text, "m3"), std::vector<int>({0, 1, 3}));
  EXPECT_EQ(job_detail_gpus(text, "n05"), std::vector<int>({0, 1, 3}));
  EXPECT_EQ(job_detail_gpus(text, "n3"), std::nullopt);
  EXPECT_EQ(job_detail_gpus(text, "n9"), std::nullopt);
  EXPECT_EQ(job_detail_gpus("slurm_load_jobs error", "n1"), std::nullopt);
}

std::vector<std::string> shares(const std::vector<std::vector<Gpu>>& seen, int per_worker) {
  std::vector<std::string> result;
  for (const auto& share : share_gpus(seen, per_worker)) result.push_back(names(share));
  return result;
}

TEST(ShareGpus, AllSeeTheSame) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(shares({cards(2), cards(2)}, 1), Names({"GPU-0", "GPU-1"}));
  EXPECT_EQ(shares({cards(4), cards(4)}, 2), Names({"GPU-0 GPU-1", "GPU-2 GPU-3"}));
  EXPECT_EQ(shares({cards(4), cards(4)}, 0), Names({"GPU-0 GPU-1", "GPU-2 GPU-3"}));
  EXPECT_EQ(shares({cards(3)}, 1), Names({"GPU-0"}));  // more than it asked for: left unused
  EXPECT_EQ(shares({kSlices, kSlices, kSlices, kSlices}, 1),
            Names({"MIG-0", "MIG-1", "MIG-2", "MIG-3"}));
}

TEST(ShareGpus, BoundTasksKeepTheirOwn) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(shares({{card(1)}, {card(0)}}, 1), Names({"GPU-1", "GPU-0"}));
  EXPECT_EQ(shares({{card(1), card(2)}, {card(0)}}, 0), Names({"GPU-1 GPU-2", "GPU-0"}));
}

TEST(ShareGpus, NoGpusAtAllIsNoError) {
  EXPECT_EQ(shares({{}, {}}, 1), std::vector<std::string>({"", ""}));
}

TEST(ShareGpus, TooFewSayHowMany) {
  try {
    share_gpus({cards(1), cards(1)}, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("2 tasks on this node need 1 GPU(s) each"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(share_gpus({cards(1), cards(1)}, 0), Error);
}

TEST(FakeGpus, AreReadAndABrokenFileIsNamed) {
  std::string path = "/tmp/af-fake-gpus-XXXXXX";
  ::close(::mkstemp(path.data()));
  std::ofstream(path) << R"([{"uuid":"MIG-a","index":0,"type":"1g.5gb","parent_uuid":"GPU-x",)"
                      << R"("memory_gb":5,"driver":"535.1"}])";
  const std::vector<Gpu> gpus = fake_gpu_source(path)->all_gpus();
  ASSERT_EQ(gpus.size(), 1u);
  EXPECT_TRUE(gpus[0].mig);
  EXPECT_EQ(gpus[0].parent_uuid, "GPU-x");
  EXPECT_EQ(gpus[0].memory_gb, 5);
  std::ofstream(path) << "[{";
  try {
    fake_gpu_source(path)->all_gpus();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
  }
  ::unlink(path.c_str());
  EXPECT_EQ(fake_gpu_source(path), nullptr);
}

}  // namespace
}  // namespace af
