// SPDX-License-Identifier: Apache-2.0
// A collective operation of af's local backend against MPI's, in the same processes, started by
// mpirun (bench_allreduce does it; mpi_pair.h says how it is measured).
//
//   collective_pair NAME PEER BYTES OURS THEIRS [WORDS…]
//     OURS, THEIRS: all_reduce, reduce_scatter, all_gather (BYTES of the larger side), or
//     sharded: two all-gathers at once and a reduce-scatter, what FSDP does with BYTES of
//     parameters two: all-reduces of BYTES on two communicators at once
//   WORDS: tcp          each rank believes to be on a node of its own
//          nodes=N      ranks believe to be on N nodes, dealt in order
//          foreign      buffers from malloc      foreign-out  only the output
//          in-place     all_gather and reduce_scatter: a rank's part lies within the whole
//          two-cores    all ranks share two cores, however many there are
//          f16 bf16     ours in this type; MPI, which has neither, in f32 of as many bytes
//          progress     operations run on af's progress thread
//          against-own  THEIRS is af's as well; times-1.5: and counted 1.5 times
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <fmt/core.h>
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "af/communicator.h"
#include "bench/mpi_pair.h"
#include "perf/directory_store.h"

namespace {

using af::bench::rank, af::bench::world;

struct Request {
  std::string name, peer, ours, theirs;
  std::size_t bytes = 0;
  std::set<std::string> words;
  bool has(const char* word) const { return words.count(word) != 0; }
  af::DataType type() const {
    return has("f16") ? af::DataType::f16 : has("bf16") ? af::DataType::bf16 : af::DataType::f32;
  }
  int nodes() const {
    if (has("tcp")) return world;
    for (const std::string& word : words) {
      if (word.rfind("nodes=", 0) == 0) return std::stoi(word.substr(6));
    }
    return 1;
  }
};

[[noreturn]] void fail(const std::string& why) {
  fmt::print(stderr, "collective_pair: rank {}: {}\n", rank, why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

std::string shared_directory() {
  std::string path = std::filesystem::temp_directory_path() / "af-bench-XXXXXX";
  if (rank == 0 && !mkdtemp(path.data())) fail("cannot make a directory");
  MPI_Bcast(path.data(), static_cast<int>(path.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
  return path;
}

af::Communicator form(const Request& request, const std::string& directory, const char* name) {
  af::Options options;
  options.rank = rank;
  options.world_size = world;
  options.backend = af::BackendKind::local;
  options.store = af::perf::make_directory_store(directory);
  options.name = name;
  // Without: one thread per rank, as MPI has.
  options.progress_thread = request.has("progress") || request.ours == "two";
  if (request.nodes() > 1) options.node_identity = std::to_string(rank * request.nodes() / world);
  return af::Communicator(options);
}

// One operation of one side, with buffers of its own. The first run is checked.
class Ours {
 public:
  Ours(const Request& request, const std::string& kind, af::Communicator& first,
       af::Communicator& second)
      : kind_(kind), type_(request.type()), first_(first), second_(second) {
    count_ = request.bytes / af::size_of(type_);
    part_ = count_ / static_cast<std::size_t>(world);
    const std::size_t bytes = count_ * af::size_of(type_);
    in_ = area(bytes, request.has("foreign"));
    out_ = area(bytes, request.has("foreign") || request.has("foreign-out"));
    again_ = area(bytes, request.has("foreign") || request.has("foreign-out"));
    const std::size_t own = static_cast<std::size_t>(rank) * part_ * af::size_of(type_);
    if (request.has("in-place")) {
      gather_from_ = kind == "all_gather" ? out_ + own : nullptr;
      scatter_to_ = in_ + own;
    } else {
      gather_from_ = in_;
      scatter_to_ = out_;
    }
    blocking_.blocking = !request.has("progress") && kind != "two";
  }

  void run() {
    if (kind_ == "all_reduce") {
      first_.all_reduce(in_, in_, count_, type_, af::ReduceOp::sum, blocking_).synchronize();
    } else if (kind_ == "reduce_scatter") {
      scatter().synchronize();
    } else if (kind_ == "all_gather") {
      gather(out_).synchronize();
    } else if (kind_ == "sharded") {
      const af::Work one = gather(out_), other = gather(again_);
      one.synchronize();
      other.synchronize();
      scatter().synchronize();
    } else {
      const af::Work one = first_.all_reduce(in_, in_, count_, type_);
      const af::Work other = second_.all_reduce(out_, out_, count_, type_);
      one.synchronize();
      other.synchronize();
    }
  }

  // A benchmark of wrong results would be worth nothing. Afterwards all is 0, and stays so however
  // often it is added up.
  void check() {
    if (type_ == af::DataType::f32) {
      float* in = reinterpret_cast<float*>(in_);
      for (char* each : {in_, out_, again_}) {
        std::fill_n(reinterpret_cast<float*>(each), count_, static_cast<float>(rank + 1));
      }
      run();
      const auto sum = static_cast<float>(world * (world + 1) / 2);
      if (kind_ == "all_reduce") expect(in, count_, [&](std::size_t) { return sum; });
      if (kind_ == "reduce_scatter") {
        expect(reinterpret_cast<float*>(scatter_to_), part_, [&](std::size_t) { return sum; });
      }
      if (kind_ == "all_gather" || kind_ == "sharded") {
        const float* gathered = reinterpret_cast<float*>(again_);
        expect(kind_ == "sharded" ? gathered : reinterpret_cast<float*>(out_),
               part_ * static_cast<std::size_t>(world),
               [&](std::size_t i) { return static_cast<float>(i / part_ + 1); });
      }
    }
    for (char* each : {in_, out_, again_}) std::memset(each, 0, count_ * af::size_of(type_));
  }

  void write() {
    if (kind_ == "all_gather") {
      std::memset(gather_from_, 0, part_ * af::size_of(type_));
    } else {
      std::memset(in_, 0, count_ * af::size_of(type_));
    }
    if (kind_ == "two") std::memset(out_, 0, count_ * af::size_of(type_));
  }

 private:
  af::Work gather(char* out) {
    // Of two gathers at once each has its own part in place.
    const std::size_t own = static_cast<std::size_t>(rank) * part_ * af::size_of(type_);
    const char* from = gather_from_ != nullptr ? gather_from_ : out + own;
    return first_.all_gather(from, out, part_, type_, blocking_);
  }
  af::Work scatter() {
    return first_.reduce_scatter(in_, scatter_to_, part_, type_, af::ReduceOp::sum, blocking_);
  }

  char* area(std::size_t bytes, bool foreign) {
    if (foreign) return foreign_.emplace_back(bytes).data();
    return static_cast<char*>(buffers_.emplace_back(first_.allocate(bytes)).data());
  }

  template <typename Wanted>
  void expect(const float* values, std::size_t count, Wanted wanted) {
    for (std::size_t i = 0; i < count; ++i) {
      if (values[i] == wanted(i)) continue;
      fail(fmt::format("{}: element {} is {}, not {}", kind_, i, values[i], wanted(i)));
    }
  }

  const std::string kind_;
  const af::DataType type_;
  af::Communicator& first_;
  af::Communicator& second_;
  std::size_t count_ = 0, part_ = 0;
  std::vector<af::Buffer> buffers_;
  std::vector<std::vector<char>> foreign_;
  char *in_ = nullptr, *out_ = nullptr, *again_ = nullptr;
  char *gather_from_ = nullptr, *scatter_to_ = nullptr;  // null: the part of `out`
  af::CallOptions blocking_;
};

class Theirs {
 public:
  Theirs(const Request& request, const std::string& kind)
      : kind_(kind),
        count_(request.bytes / sizeof(float)),
        part_(count_ / static_cast<std::size_t>(world)),
        gives_(kind == "all_gather" ? part_ : count_),
        in_(count_),
        out_(count_),
        again_(count_) {
    MPI_Comm_dup(MPI_COMM_WORLD, &second_);
  }

  void write() {
    std::fill_n(in_.begin(), gives_, 0.0f);
    if (kind_ == "two") std::fill_n(out_.begin(), count_, 0.0f);
  }

  void run() {
    const int count = static_cast<int>(count_), part = static_cast<int>(part_);
    MPI_Comm comm = MPI_COMM_WORLD;
    MPI_Request requests[2];
    if (kind_ == "all_reduce") {
      MPI_Allreduce(MPI_IN_PLACE, in_.data(), count, MPI_FLOAT, MPI_SUM, comm);
    } else if (kind_ == "reduce_scatter") {
      MPI_Reduce_scatter_block(in_.data(), out_.data(), part, MPI_FLOAT, MPI_SUM, comm);
    } else if (kind_ == "all_gather") {
      MPI_Allgather(in_.data(), part, MPI_FLOAT, out_.data(), part, MPI_FLOAT, comm);
    } else if (kind_ == "sharded") {
      MPI_Allgather(in_.data(), part, MPI_FLOAT, out_.data(), part, MPI_FLOAT, comm);
      MPI_Allgather(in_.data(), part, MPI_FLOAT, again_.data(), part, MPI_FLOAT, comm);
      MPI_Reduce_scatter_block(in_.data(), out_.data(), part, MPI_FLOAT, MPI_SUM, comm);
    } else {
      MPI_Iallreduce(MPI_IN_PLACE, in_.data(), count, MPI_FLOAT, MPI_SUM, comm, &requests[0]);
      MPI_Iallreduce(MPI_IN_PLACE, out_.data(), count, MPI_FLOAT, MPI_SUM, second_, &requests[1]);
      MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    }
  }

 private:
  const std::string kind_;
  const std::size_t count_, part_, gives_;
  std::vector<float> in_, out_, again_;
  MPI_Comm second_ = MPI_COMM_NULL;
};

void run(const Request& request) {
  const std::string directory = shared_directory();
  af::Communicator first = form(request, directory, "first");
  af::Communicator second = form(request, directory, "second");
  Ours ours(request, request.ours, first, second);
  ours.check();
  af::bench::Side side([&] { ours.write(); }, [&] { ours.run(); });
  if (request.has("against-own")) {
    Ours others(request, request.theirs, first, second);
    others.check();
    af::bench::Side other([&] { others.write(); }, [&] { others.run(); });
    compare(request.name, request.peer, side, other, request.has("times-1.5") ? 1.5 : 1);
  } else {
    Theirs theirs(request, request.theirs);
    af::bench::Side other([&] { theirs.write(); }, [&] { theirs.run(); });
    compare(request.name, request.peer, side, other);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::filesystem::remove_all(directory);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    fmt::print(stderr, "usage: mpirun -n N collective_pair NAME PEER BYTES OURS THEIRS [WORDS]\n");
    return 2;
  }
  Request request{argv[1], argv[2], argv[4], argv[5], std::stoul(argv[3]), {argv + 6, argv + argc}};
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  af::bench::start(request.has("two-cores") ? 2 : CPU_SETSIZE);
  try {
    run(request);
  } catch (const std::exception& error) {
    fail(error.what());
  }
  MPI_Finalize();
}
