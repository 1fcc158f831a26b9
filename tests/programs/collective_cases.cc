// SPDX-License-Identifier: Apache-2.0
// One rank of a world that something goes wrong in (or does not); prints what it saw, one line per
// rank: "rank R: …". Started by mpirun in tests/cluster/test_perf.py. What af-perf does not cover.
//
//   collective_cases exact      pre-scales, averages, inputs left alone, pieces in place
//   collective_cases own-init   the same where the program has called MPI_Init, for one thread
//   collective_cases late       the last rank never enters the second operation
//   collective_cases abort      rank 1 aborts instead of taking part
//   collective_cases killed     rank 1 dies in the middle
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "af/communicator.h"

namespace {

using af::DataType;
using af::ReduceOp;

int wrong = 0;
#define EXPECT(condition)                                                          \
  do {                                                                             \
    if (!(condition)) std::printf("line %d: %s\n", __LINE__, #condition), ++wrong; \
  } while (false)

// f16 of small whole numbers and halves, enough for what is tested here.
constexpr std::uint16_t kHalfOne = 0x3c00, kHalfTwo = 0x4000, kHalfThree = 0x4200;
constexpr std::uint16_t kBfloatOne = 0x3f80, kBfloatTwo = 0x4000, kBfloatThree = 0x4040;

// Sums over two ranks with a scale per rank, out of place; `in` must stay what it was.
template <typename T>
void scaled_sum(af::Communicator& world, DataType type, T in, T want, double scale) {
  const std::vector<T> input(1001, in);
  std::vector<T> output(1001);
  world
      .all_reduce(input.data(), output.data(), input.size(), type, ReduceOp::sum,
                  {.pre_scale = scale})
      .synchronize();
  EXPECT(output == std::vector<T>(1001, want));
  EXPECT(input == std::vector<T>(1001, in));
}

void exact(af::Communicator& world) {
  const int rank = world.rank();
  const double scale = rank == 0 ? 1 : 2;  // 1 * 1 + 1 * 2
  scaled_sum<std::uint16_t>(world, DataType::f16, kHalfOne, kHalfThree, scale);
  scaled_sum<std::uint16_t>(world, DataType::bf16, kBfloatOne, kBfloatThree, scale);
  scaled_sum<float>(world, DataType::f32, 1, 3, scale);
  scaled_sum<double>(world, DataType::f64, 1, 3, scale);
  scaled_sum<std::int8_t>(world, DataType::i8, -1, -3, scale);
  scaled_sum<std::uint64_t>(world, DataType::u64, 1, 3, scale);

  // Averages of what has no exact half are cut towards zero: (-3 + 0) / 2.
  std::int32_t number = rank == 0 ? -3 : 0;
  world.all_reduce(&number, &number, 1, DataType::i32, ReduceOp::avg).synchronize();
  EXPECT(number == -1);
  std::uint16_t half = rank == 0 ? kHalfOne : kHalfThree;
  world.all_reduce(&half, &half, 1, DataType::f16, ReduceOp::avg).synchronize();
  EXPECT(half == kHalfTwo);
  std::uint16_t bfloat = rank == 0 ? kBfloatOne : kBfloatThree;
  world.all_reduce(&bfloat, &bfloat, 1, DataType::bf16, ReduceOp::avg).synchronize();
  EXPECT(bfloat == kBfloatTwo);

  // Reduce-scatter in place changes this rank's part only.
  std::vector<float> all = {1, 2, 3, 4};
  world
      .reduce_scatter(all.data(), all.data() + 2 * rank, 2, DataType::f32, ReduceOp::sum,
                      {.pre_scale = 0.5})
      .synchronize();
  EXPECT((all == std::vector<float>{1, 2, 3, 4}));  // (x + x) / 2; the other part untouched

  // All operations, several in flight, waited for in another order.
  std::vector<float> large(100'000, 1);
  const af::Work first = world.all_reduce(large.data(), large.data(), large.size(), DataType::f32);
  const af::Work second = world.barrier();
  second.synchronize();
  first.synchronize();
  EXPECT(first.done() && large.front() == 2 && large.back() == 2);
  world.barrier().synchronize();
}

std::string kind_name(af::CommunicatorError::Kind kind) {
  using Kind = af::CommunicatorError::Kind;
  return kind == Kind::timeout ? "timeout" : kind == Kind::aborted ? "aborted" : "other";
}

int fail_in(af::Communicator& world, const std::string& name) {
  float value = 1;
  world.barrier().synchronize();
  if (name == "late" && world.rank() == world.world_size() - 1) {
    ::pause();  // until mpirun ends it, as the others leave with an error
  }
  if (name == "abort" && world.rank() == 1) {
    world.abort("disk full");
    ::pause();
  }
  if (name == "killed" && world.rank() == 1) ::kill(::getpid(), SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  try {
    world.all_reduce(&value, &value, 1, DataType::f32).synchronize();
    std::printf("rank %d: no failure\n", world.rank());
    return 0;
  } catch (const af::CommunicatorError& error) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::string ranks;
    for (const int rank : error.ranks()) ranks += " " + std::to_string(rank);
    std::printf("rank %d: %s, ranks%s, after %.1f s: %s\n", world.rank(),
                kind_name(error.kind()).c_str(), ranks.c_str(), took.count(), error.what());
    std::fflush(stdout);
  }
  try {
    world.barrier().synchronize();
    std::printf("rank %d: works after a failure\n", world.rank());
  } catch (const af::CommunicatorError&) {
    std::printf("rank %d: broken\n", world.rank());
  }
  std::fflush(stdout);
  ::sleep(2);  // mpirun ends all ranks as soon as one has left with an error
  return 3;
}

// As a program that uses MPI itself: MPI_Init, af, MPI_Finalize. Through the module, because this
// program must not be linked with MPI.
int exact_inside_mpi() {
  void* module = ::dlopen("libaf_collectives_mpi.so", RTLD_NOW | RTLD_GLOBAL);
  const auto init = reinterpret_cast<int (*)(int*, char***)>(::dlsym(RTLD_DEFAULT, "MPI_Init"));
  const auto finalize = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "MPI_Finalize"));
  if (!module || !init || !finalize || init(nullptr, nullptr) != 0) {
    std::fprintf(stderr, "collective_cases: no MPI: %s\n", ::dlerror());
    return 2;
  }
  {
    af::Communicator world = af::Communicator::from_environment();
    exact(world);
    std::printf("rank %d of %d, %s: %d wrong\n", world.rank(), world.world_size(),
                af::name_of(world.backend()), wrong);
  }
  return finalize() != 0 || wrong != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "exact";
  try {
    if (name == "own-init") return exact_inside_mpi();
    af::Communicator world = af::Communicator::from_environment();
    if (name != "exact") return fail_in(world, name);
    exact(world);
    std::printf("rank %d of %d, %s: %d wrong\n", world.rank(), world.world_size(),
                af::name_of(world.backend()), wrong);
    return wrong == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collective_cases: %s\n", error.what());
    return 2;
  }
}
