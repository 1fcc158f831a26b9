// SPDX-License-Identifier: Apache-2.0
// All-reduce of f32 in place, af's local backend against MPI_Allreduce, in the same processes.
//
// Started by mpirun (bench_allreduce does it). Both sides run in turn in blocks of at most a
// second, in alternating order, so that what else happens on the machine hits both; the figure is
// the median of the ratios of neighbouring blocks. Blocks in which other programs took more than 5
// % of the CPU do not count. Rank 0 prints one result as a JSON line (scripts/bench).
//
//   allreduce_pair NAME PEER BYTES [tcp] [foreign] [two-cores]
//     tcp: each rank believes to be on a node of its own    foreign: buffer from malloc
//     two-cores: all ranks share two cores, however many there are
#include <fmt/core.h>
// The C++ bindings were deprecated in 2009, and their headers do not compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "af/communicator.h"
#include "perf/directory_store.h"

namespace {

constexpr double kBlockSeconds = 0.25;
constexpr int kPairs = 15;
constexpr double kMostSeconds = 15;  // of one result; then with the pairs that there are
constexpr double kStrangers = 0.05;

int rank = 0, world = 1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double over_ranks(double value, MPI_Op op) {
  double result = 0;
  MPI_Allreduce(&value, &result, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
  return result;
}

// One core per rank, counted round among those that we may use, at most `most` of them.
void pin(std::size_t most) {
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

// Seconds of CPU that everybody on this machine has used so far, and this process.
double machine_cpu() {
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq;
  return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}
double own_cpu() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Block {
  double mean = 0;       // seconds of an operation, of the slowest rank
  double strangers = 0;  // their share of the machine's CPU
};

class Side {
 public:
  explicit Side(std::function<void()> operation) : operation_(std::move(operation)) {
    double took = 0;
    for (int i = 0; i < 3; ++i) took = time_of(1);
    for (int count = 1; took < kBlockSeconds / 4 && count < 1 << 20; count *= 2) {
      took = time_of(count);
      per_block_ = std::max(1, static_cast<int>(count * kBlockSeconds / took));
    }
    MPI_Bcast(&per_block_, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }

  Block run() {
    const double machine = machine_cpu(), own = own_cpu(), start = now();
    Block block;
    block.mean = time_of(per_block_) / per_block_;
    const double ours = over_ranks(own_cpu() - own, MPI_SUM);
    const double capacity = (now() - start) * static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
    block.strangers = std::max(0.0, machine_cpu() - machine - ours) / capacity;
    MPI_Bcast(&block.strangers, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return block;
  }

  double median_operation() {
    std::sort(single_.begin(), single_.end());
    return single_[single_.size() / 2];
  }

 private:
  // Seconds, of the slowest rank; the same on all ranks.
  double time_of(int count) {
    single_.reserve(single_.size() + static_cast<std::size_t>(count));
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now();
    double before = start;
    for (int i = 0; i < count; ++i) {
      operation_();
      const double after = now();
      single_.push_back(after - before);
      before = after;
    }
    return over_ranks(before - start, MPI_MAX);
  }

  std::function<void()> operation_;
  int per_block_ = 1;
  std::vector<double> single_;
};

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const auto high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

// All ranks do the same, and rank 0's clock says when it is over.
bool go_on(double start, std::size_t good) {
  int more = good < kPairs && now() - start < kMostSeconds ? 1 : 0;
  MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return more != 0;
}

void compare(const std::string& name, const std::string& peer, Side& ours, Side& theirs) {
  struct Kept {
    std::vector<double> ours, theirs, ratios;
    void add(const Block& a, const Block& b) {
      ours.push_back(a.mean);
      theirs.push_back(b.mean);
      ratios.push_back(b.mean / a.mean);
    }
  } all, quiet;
  const double start = now();
  for (int pair = 0; go_on(start, quiet.ratios.size()); ++pair) {
    Block a, b;
    if (pair % 2 == 0) {
      a = ours.run();
      b = theirs.run();
    } else {
      b = theirs.run();
      a = ours.run();
    }
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
}

// A benchmark of wrong results would be worth nothing.
void require_sum(const float* values, std::size_t count, const char* side) {
  const int sum = world * (world + 1) / 2;
  const auto want = static_cast<float>(sum);
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] == want) continue;
    fmt::print(stderr, "allreduce_pair: {}: element {} is {}, not {}\n", side, i, values[i], want);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

std::string shared_directory() {
  std::string path = std::filesystem::temp_directory_path() / "af-bench-XXXXXX";
  if (rank == 0 && !mkdtemp(path.data())) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  return path;
}

int run(int argc, char** argv) {
  const std::string name = argv[1], peer = argv[2];
  const std::size_t bytes = std::stoul(argv[3]), count = bytes / sizeof(float);
  const auto asked = [&](const char* word) {
    return std::find_if(argv + 4, argv + argc,
                        [&](const char* a) { return std::strcmp(a, word) == 0; }) != argv + argc;
  };
  pin(asked("two-cores") ? 2 : CPU_SETSIZE);
  const std::string directory = shared_directory();
  af::Options options;
  options.rank = rank;
  options.world_size = world;
  options.backend = af::BackendKind::local;
  options.store = af::perf::make_directory_store(directory);
  options.progress_thread = false;  // one thread per rank, as MPI has
  if (asked("tcp")) options.node_identity = std::to_string(rank);
  af::Communicator communicator(options);

  af::Buffer buffer = communicator.allocate(bytes);
  std::vector<float> own(count), foreign(count);
  float* ours = asked("foreign") ? foreign.data() : static_cast<float*>(buffer.data());
  float* theirs = own.data();
  const int n = static_cast<int>(count);
  const auto reduce_ours = [&] {
    communicator.all_reduce(ours, ours, count, af::DataType::f32, af::ReduceOp::sum,
                            {.blocking = true});
  };
  const auto reduce_theirs = [&] {
    MPI_Allreduce(MPI_IN_PLACE, theirs, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  std::fill_n(ours, count, static_cast<float>(rank + 1));
  std::fill_n(theirs, count, static_cast<float>(rank + 1));
  reduce_ours();
  reduce_theirs();
  require_sum(ours, count, "af");
  require_sum(theirs, count, "MPI");
  // Zeros stay zeros, however often they are added up.
  std::fill_n(ours, count, 0.0f);
  std::fill_n(theirs, count, 0.0f);

  Side first(reduce_ours), second(reduce_theirs);
  compare(name, peer, first, second);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  int code = 2;
  if (argc < 4) {
    fmt::print(stderr,
               "usage: mpirun -n N allreduce_pair NAME PEER BYTES [tcp] [foreign] [two-cores]\n");
  } else {
    try {
      code = run(argc, argv);
    } catch (const std::exception& error) {
      fmt::print(stderr, "allreduce_pair: rank {}: {}\n", rank, error.what());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  MPI_Finalize();
  return code;
}
