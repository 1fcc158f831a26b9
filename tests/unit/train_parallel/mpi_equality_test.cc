// SPDX-License-Identifier: Apache-2.0
// The same over MPI: this program starts itself under mpirun, as two ranks.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <fmt/core.h>

#include "af/train/distributed_data_parallel.h"
#include "tests/unit/train_parallel/equality_models.h"

namespace af::train {
namespace {

constexpr int64_t kSteps = 50;

test::Values train(const test::EqualityCase& one, Communicator& world) {
  const auto model = one.make();
  DistributedDataParallelOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1000;
  DistributedDataParallel ddp(*model, world, options);
  torch::optim::Adam adam(model->parameters());
  for (int64_t step = 0; step < kSteps; ++step) {
    const test::Batch mine = one.share(step, world.rank(), world.world_size());
    ddp.zero_grad();
    ddp.backward(one.loss(model->forward(mine.x), mine.y), mine.rows());
    adam.step();
  }
  return test::values_of(*model);
}

void be_a_rank() {
  Communicator world = Communicator::from_environment();
  ASSERT_EQ(world.backend(), BackendKind::mpi) << world.description();
  for (const test::EqualityCase& one : test::equality_cases(at::kDouble, 26)) {
    const double difference =
        test::largest_difference(train(one, world), test::train_alone(one, kSteps));
    EXPECT_LT(difference, 1e-10) << one.name << ", rank " << world.rank();
  }
}

TEST(EqualityOverMpi, DoubleIsThatOfOneProcess) {
  at::set_num_threads(1);
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return be_a_rank();
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto libraries = self.parent_path() / "../../lib";  // where the mpi backend's module is
  // Waiting ranks yield: else they take MPI minutes on a busy machine.
  const std::string command = fmt::format(
      "LD_LIBRARY_PATH={} OMP_NUM_THREADS=1 timeout 300 mpirun -n 2 --bind-to none "
      "--mca mpi_yield_when_idle 1 "
      "--oversubscribe {} {} --gtest_brief=1 --gtest_filter=EqualityOverMpi.* >&2",
      libraries.string(), geteuid() == 0 ? "--allow-run-as-root" : "", self.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace af::train
