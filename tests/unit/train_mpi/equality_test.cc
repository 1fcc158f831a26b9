// SPDX-License-Identifier: Apache-2.0
// Training over MPI is that of one process on the whole batch: this program starts itself under
// mpirun, as two, three and four ranks.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/core.h>

#include "tests/unit/temporary_directory.h"
#include "tests/unit/train_fsdp/sharded_chain.h"
#include "tests/unit/train_parallel/replicated_chain.h"
#include "train/parallel/model_agreement.h"

namespace af::train {
namespace {

namespace fs = std::filesystem;
using test::EqualityCase;
using test::Values;

constexpr int64_t kSteps = 50;
constexpr char kProof[] = "AF_TEST_MPI_PROOF";  // a directory in which each rank says what it did

Values train_ddp(const EqualityCase& one, Communicator& world) {
  return test::train_ddp(one, world, kSteps);
}

Values train_fsdp(const EqualityCase& one, Communicator& world) {
  const auto model = one.make();
  FullyShardedDataParallel fsdp(*model, world, test::by_parts(*model));
  torch::optim::Adam adam(fsdp.parameters());
  for (int64_t step = 0; step < kSteps; ++step)
    test::sharded_step(fsdp, *model, one, one.share(step, world.rank(), world.world_size()), adam);
  return test::whole_values(fsdp);
}

// Of the values, bit by bit: float has its own double.
std::vector<uint64_t> bits_of(const Values& values) {
  std::vector<uint64_t> bits;
  for (const auto& [name, value] : values) {
    const at::Tensor wide = value.to(at::kDouble).contiguous();
    const std::size_t before = bits.size();
    bits.resize(before + static_cast<std::size_t>(wide.numel()));
    std::memcpy(bits.data() + before, wide.data_ptr<double>(), wide.nbytes());
  }
  return bits;
}

void expect_the_same_on_all(Communicator& world, const Values& values, const std::string& what) {
  const std::vector<uint64_t> mine = bits_of(values);
  const std::vector<uint64_t> all = gather_numbers(world, mine, at::kCPU);
  ASSERT_EQ(all.size(), mine.size() * static_cast<std::size_t>(world.world_size()));
  EXPECT_EQ(std::vector<uint64_t>(all.begin(), all.begin() + std::ptrdiff_t(mine.size())), mine)
      << what << ": rank " << world.rank() << " has other bits than rank 0";
}

void be_a_rank() {
  Communicator world = Communicator::from_environment();
  ASSERT_EQ(world.backend(), BackendKind::mpi) << world.description();
  int trainings = 0;
  for (const bool sharded : {false, true}) {
    const auto train = sharded ? train_fsdp : train_ddp;
    // 26 rows: three and four ranks have shares that differ.
    for (const EqualityCase& one : test::equality_cases(at::kDouble, 26)) {
      const std::string what = fmt::format("{} {}", sharded ? "fsdp" : "ddp", one.name);
      const Values alone = test::train_alone(one, kSteps);
      EXPECT_GT(test::largest_difference(alone, test::values_of(*one.make())), 0.01) << what;
      EXPECT_LT(test::largest_difference(train(one, world), alone), 1e-10)
          << what << ", rank " << world.rank();
      ++trainings;
    }
    for (const EqualityCase& one : test::equality_cases(at::kFloat, 26)) {
      const std::string what = fmt::format("{} {}", sharded ? "fsdp" : "ddp", one.name);
      const Values values = train(one, world);
      expect_the_same_on_all(world, values, what);
      // In the others, gradients that are zero but for rounding make steps of their own.
      if (one.name == "guide") {
        EXPECT_LT(test::largest_difference(values, test::train_alone(one, kSteps)), 1e-6) << what;
      }
      ++trainings;
    }
  }
  std::ofstream(fs::path(std::getenv(kProof)) / std::to_string(world.rank()))
      << trainings << " of " << world.world_size();
}

class EqualityOverMpi : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, EqualityOverMpi, testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

TEST_P(EqualityOverMpi, AnyWorldTrainsAsOneProcessDoes) {
  at::set_num_threads(1);
  if (std::getenv(kProof) != nullptr) return be_a_rank();
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const fs::path libraries = (self.parent_path() / "../../lib").lexically_normal();
  const fs::path module = libraries / "libaf_collectives_mpi.so";
  if (!fs::exists(module))
    GTEST_SKIP() << module.string() << " is missing: af was built without MPI's headers";
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryDirectory proof;
  // Waiting ranks yield: else they take MPI minutes on a busy machine.
  const std::string command = fmt::format(
      "{}={} LD_LIBRARY_PATH={} OMP_NUM_THREADS=1 timeout 300 mpirun -n {} --bind-to none "
      "--mca mpi_yield_when_idle 1 --oversubscribe {} {} --gtest_brief=1 "
      "--gtest_filter=Worlds/EqualityOverMpi.AnyWorldTrainsAsOneProcessDoes/{} >&2",
      kProof, proof.path().string(), libraries.string(), GetParam(),
      geteuid() == 0 ? "--allow-run-as-root" : "", self.string(), GetParam());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  for (int rank = 0; rank < GetParam(); ++rank) {
    std::string said;
    std::getline(std::ifstream(proof / std::to_string(rank)) >> std::ws, said);
    EXPECT_EQ(said, fmt::format("12 of {}", GetParam())) << "rank " << rank;
  }
}

}  // namespace
}  // namespace af::train
