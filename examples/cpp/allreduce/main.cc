// SPDX-License-Identifier: Apache-2.0
// The smallest program on af's collectives: estimates pi with all ranks of the world.
//
//   ./allreduce                                     a world of one
//   af-launch --workers 4 ./allreduce               four ranks on this machine
//   srun --af-n-workers=4 af-launch ./allreduce     four ranks on the cluster
//   mpirun -n 4 ./allreduce                         the same program over MPI
//
// The sums live in memory of allocate(), which the ranks of a node reduce in place without a copy.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>

#include "af/communicator.h"

namespace {

constexpr std::int64_t kPoints = 8'000'000;  // of all ranks together

// Points of this rank's share that lie inside the quarter circle. Seeded by rank: no two ranks draw
// the same points, and the same world gives the same result again.
std::int64_t count_inside(int rank, std::int64_t points) {
  std::mt19937_64 random(std::uint64_t(rank) + 1);
  std::uniform_real_distribution<double> uniform;
  std::int64_t inside = 0;
  for (std::int64_t i = 0; i < points; ++i) {
    const double x = uniform(random);
    const double y = uniform(random);
    inside += x * x + y * y < 1;
  }
  return inside;
}

void run() {
  af::Communicator world = af::Communicator::from_environment();
  const std::int64_t begin = kPoints * world.rank() / world.world_size();
  const std::int64_t end = kPoints * (world.rank() + 1) / world.world_size();

  af::Buffer buffer = world.allocate(2 * sizeof(std::int64_t));
  auto* sums = static_cast<std::int64_t*>(buffer.data());
  sums[0] = count_inside(world.rank(), end - begin);
  sums[1] = end - begin;
  world.all_reduce(sums, sums, 2, af::DataType::i64).synchronize();

  if (world.rank() == 0) {
    std::printf("%s\n", world.description().c_str());
    std::printf("pi is about %.4f, from %lld points\n", 4.0 * double(sums[0]) / double(sums[1]),
                static_cast<long long>(sums[1]));
  }
}

}  // namespace

int main() {
  try {
    run();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "allreduce: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
