// SPDX-License-Identifier: Apache-2.0
// af-perf: measures the collective operations of this build on these ranks (docs/af-perf.md).
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/error.h"
#include "perf/directory_store.h"
#include "perf/local_ranks.h"
#include "perf/run.h"
#include "perf/sizes.h"
#include "perf/start.h"
#include "perf/words.h"

namespace af::perf {
namespace {

struct CommandLine {
  std::string begin = "8", end = "16M", kinds = "all_reduce", types = "f32", reductions = "sum";
  std::string backend, rendezvous;
  double factor = 4, timeout = 0;
  int iterations = 20, warmup = 5, check = 1, blocking = 0, root = 0, ranks = 0, device = -1,
      nodes = 1;
  bool foreign = false;
};

void describe(CLI::App& app, CommandLine& line) {
  app.set_version_flag("--version", AF_VERSION);
  app.add_option("-b,--minbytes", line.begin, "first size: 8, 64K, 25M, 1G")->capture_default_str();
  app.add_option("-e,--maxbytes", line.end, "last size")->capture_default_str();
  app.add_option("-f,--stepfactor", line.factor, "each size is so many times the one before")
      ->capture_default_str();
  app.add_option("-n,--iters", line.iterations, "timed iterations")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", line.warmup, "iterations before the timed ones")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_option("-c,--check", line.check, "1: count wrong elements, 0: do not")
      ->check(CLI::Range(0, 1))
      ->expected(0, 1)
      ->default_str("1")
      ->capture_default_str();
  app.add_option("-z,--blocking", line.blocking, "1: wait for each operation before the next")
      ->check(CLI::Range(0, 1))
      ->capture_default_str();
  app.add_option("-d,--datatype", line.types, "i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64, all")
      ->capture_default_str();
  app.add_option("-o,--redop", line.reductions, "sum avg min max, all")->capture_default_str();
  app.add_option("-r,--root", line.root, "root of a broadcast")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--op", line.kinds, "all_reduce broadcast all_gather reduce_scatter barrier, all")
      ->capture_default_str();
  app.add_option("--backend", line.backend, "auto local mpi nccl (default: by how it was started)");
  app.add_option("--device", line.device, "CUDA device of this rank's buffers; -1: host memory")
      ->capture_default_str();
  app.add_flag("--foreign", line.foreign, "ordinary memory instead of the communicator's");
  app.add_option("--timeout", line.timeout, "seconds that an operation may wait for a rank")
      ->check(CLI::PositiveNumber);
  app.add_option("--ranks", line.ranks, "start so many ranks on this machine")
      ->check(CLI::Range(1, 256));
  app.add_option("--nodes", line.nodes, "with --ranks: let them believe to be on so many nodes")
      ->check(CLI::Range(1, 256));
  app.add_option("--rendezvous", line.rendezvous,
                 "directory that all ranks see and no other run uses, where nothing else offers a "
                 "way to meet");
}

Request request_of(const CommandLine& line) {
  Request request;
  request.sizes = sizes_between(parse_bytes(line.begin), parse_bytes(line.end), line.factor);
  request.kinds = parse_operations(line.kinds);
  request.types = parse_types(line.types);
  request.reductions = parse_reductions(line.reductions);
  request.iterations = line.iterations;
  request.warmup = line.warmup;
  request.root = line.root;
  request.check = line.check != 0;
  request.blocking = line.blocking != 0;
  request.foreign = line.foreign;
  if (line.foreign && line.device >= 0) {
    throw Error("--foreign is for host memory; on a device all memory is the communicator's");
  }
  return request;
}

void apply(const CommandLine& line, Options& options) {
  if (!line.backend.empty()) options.backend = parse_backend(line.backend);
  if (line.timeout > 0) {
    options.timeout = std::chrono::milliseconds(static_cast<long>(line.timeout * 1000));
  }
  options.device = line.device;
}

// One line for a person; the code tells a script that it was not a matter of wrong elements.
int fail(const std::string& text) {
  std::fprintf(stderr, "af-perf: %s\n", text.c_str());
  return 2;
}

template <typename Body>
int guarded(Body body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

// Where ranks meet. Its owner removes it at the end, well or not; a killed run leaves a few small
// files in it.
class MeetingPlace {
 public:
  MeetingPlace(std::string path, bool owner) : path_(std::move(path)), owner_(owner) {}
  ~MeetingPlace() {
    std::error_code ignored;
    if (owner_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MeetingPlace(const MeetingPlace&) = delete;
  MeetingPlace& operator=(const MeetingPlace&) = delete;
  const std::string& path() const { return path_; }

  static std::string new_directory() {
    std::string path = (std::filesystem::temp_directory_path() / "af-perf-XXXXXX").string();
    if (!::mkdtemp(path.data())) throw errno_error("cannot make a directory " + path);
    return path;
  }

 private:
  std::string path_;
  bool owner_;
};

int run_forked(const CommandLine& line, const Request& request) {
  const MeetingPlace meeting(MeetingPlace::new_directory(), true);
  return run_local_ranks(line.ranks, [&](int rank) {
    return guarded([&] {
      Options options;
      options.backend = BackendKind::local;
      apply(line, options);
      options.rank = rank;
      options.world_size = line.ranks;
      options.store = make_directory_store(meeting.path());
      if (line.nodes > 1) options.node_identity = std::to_string(rank * line.nodes / line.ranks);
      return run(options, request);
    });
  });
}

int run_as_rank(const CommandLine& line, const Request& request) {
  Options options = with_slurm_step(Communicator::options_from_environment(),
                                    [](const char* name) { return std::getenv(name); });
  apply(line, options);
  std::string directory;
  if (needs_store(options)) {
    directory = line.rendezvous.empty() ? directory_of_siblings() : line.rendezvous;
    options.store = make_directory_store(directory);
  }
  const MeetingPlace meeting(directory, options.rank == 0);
  return run(options, request);
}

int main_of(int argc, char** argv) {
  CLI::App app{"Measures collective operations with the columns of nccl-tests.", "af-perf"};
  CommandLine line;
  describe(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (af-perf --help shows the options)");
  }
  return guarded([&] {
    const Request request = request_of(line);
    return line.ranks > 0 ? run_forked(line, request) : run_as_rank(line, request);
  });
}

}  // namespace
}  // namespace af::perf

int main(int argc, char** argv) {
  return af::perf::main_of(argc, argv);
}
