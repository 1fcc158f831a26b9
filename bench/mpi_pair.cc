// SPDX-License-Identifier: Apache-2.0
#include "bench/mpi_pair.h"

// The C++ bindings were deprecated in 2009, and their headers do not compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/core.h>
#include <mpi.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace af::bench {

int rank = 0, world = 1;

namespace {

constexpr double kBlockSeconds = 0.08;
constexpr int kPairs = 9;
constexpr double kStrangers = 0.05;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of one result; then with the pairs that there are.
double most_seconds() {
  const char* asked = std::getenv("AF_BENCH_SECONDS");
  return asked != nullptr ? std::atof(asked) : 3;
}

double over_ranks(double value, MPI_Op op) {
  double result = 0;
  MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
  return result;
}

// Seconds of CPU that everybody on this machine has used so far, and this process. Without
// interrupts: over TCP they are the kernel's part of the work, and nobody's in particular.
double machine_cpu() {
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0;
  file >> word >> user >> nice >> system;
  return (user + nice + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}
double own_cpu() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

// All ranks do the same, and rank 0's clock says when it is over.
bool go_on(double start, std::size_t good) {
  int more = good < kPairs && now() - start < most_seconds() ? 1 : 0;
  MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return more != 0;
}

struct Kept {
  std::vector<double> ours, theirs, ratios;
  void add(const Block& a, const Block& b) {
    ours.push_back(a.mean);
    theirs.push_back(b.mean);
    ratios.push_back(b.mean / a.mean);
  }
};

}  // namespace

void start(std::size_t most) {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  cpu_set_t allowed, mine;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  CPU_ZERO(&mine);
  CPU_SET(cores[static_cast<std::size_t>(rank) % std::min(most, cores.size())], &mine);
  sched_setaffinity(0, sizeof mine, &mine);
}

Side::Side(std::function<void()> prepare, std::function<void()> operation)
    : prepare_(std::move(prepare)), operation_(std::move(operation)) {
  double took = 0;
  for (int i = 0; i < 3; ++i) took = time_of(1);
  for (int count = 1; took < kBlockSeconds / 4 && count < 1 << 20; count *= 2) {
    took = time_of(count);
    per_block_ = std::max(1, static_cast<int>(count * kBlockSeconds / took));
  }
  MPI_Bcast(&per_block_, 1, MPI_INT, 0, MPI_COMM_WORLD);
}

Block Side::run() {
  const double machine = machine_cpu(), own = own_cpu(), begin = now();
  Block block;
  block.mean = time_of(per_block_) / per_block_;
  const double ours = over_ranks(own_cpu() - own, MPI_SUM);
  const double capacity = (now() - begin) * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  block.strangers = std::max(0.0, machine_cpu() - machine - ours) / capacity;
  MPI_Bcast(&block.strangers, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return block;
}

double Side::median_operation() {
  return quantile(single_, 0.5);
}

double Side::time_of(int count) {
  single_.reserve(single_.size() + static_cast<std::size_t>(count));
  double total = 0;
  for (int i = 0; i < count; ++i) {
    prepare_();
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = now();
    operation_();
    single_.push_back(now() - begin);
    total += single_.back();
  }
  return over_ranks(total, MPI_MAX);
}

void compare(const std::string& name, const std::string& peer, Side& ours, Side& theirs,
             double factor) {
  Kept all, quiet;
  const double begin = now();
  for (int pair = 0; go_on(begin, quiet.ratios.size()); ++pair) {
    Block a, b;
    if (pair % 2 == 0) {
      a = ours.run();
      b = theirs.run();
    } else {
      b = theirs.run();
      a = ours.run();
    }
    b.mean *= factor;
    all.add(a, b);
    if (std::max(a.strangers, b.strangers) <= kStrangers) quiet.add(a, b);
  }
  if (rank != 0) return;
  const bool verdict = quiet.ratios.size() * 2 > all.ratios.size();
  const Kept& kept = verdict ? quiet : all;
  std::string spread =
      fmt::format("quartiles {:.2f} to {:.2f} over {} of {} pairs", quantile(kept.ratios, 0.25),
                  quantile(kept.ratios, 0.75), kept.ratios.size(), all.ratios.size());
  spread += fmt::format(", median operation {:.4g} and {:.4g} ms", ours.median_operation() * 1e3,
                        theirs.median_operation() * 1e3);
  if (!verdict) spread = "no verdict, other programs were busy in most blocks; " + spread;
  const nlohmann::json line = {{"name", name},
                               {"value", quantile(kept.ours, 0.5) * 1e3},
                               {"unit", "ms"},
                               {"peer", peer},
                               {"peer_value", quantile(kept.theirs, 0.5) * 1e3},
                               {"ratio", quantile(kept.ratios, 0.5)},
                               {"spread", spread}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace af::bench
