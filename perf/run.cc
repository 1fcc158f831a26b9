// SPDX-License-Identifier: Apache-2.0
#include "perf/run.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "common/error.h"
#include "perf/table.h"
#include "perf/words.h"

namespace af::perf {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

void say(int rank, const std::string& text) {
  if (rank != 0) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

// Two areas of `bytes`, from allocate() or, for memory that the backend does not know, malloc.
class Areas {
 public:
  Areas(Communicator& world, std::size_t bytes, bool foreign) {
    if (foreign) {
      plain_.resize(2 * bytes);
      area_ = {plain_.data(), plain_.data() + bytes};
    } else {
      first_ = world.allocate(bytes);
      second_ = world.allocate(bytes);
      area_ = {first_.data(), second_.data()};
    }
  }
  const Area& area() const { return area_; }

 private:
  Buffer first_, second_;
  std::vector<char> plain_;
  Area area_{};
};

void measure_kind(Communicator& world, const Options& options, const Request& request,
                  OperationKind kind, const Area& area, Summary& summary) {
  const bool reduces = kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter;
  const bool empty = kind == OperationKind::barrier;
  say(world.rank(), header(kind));
  for (const DataType type : request.types) {
    for (const ReduceOp op : request.reductions) {
      for (const std::size_t size : request.sizes) {
        Plan plan;
        plan.kind = kind;
        plan.type = type;
        plan.op = op;
        plan.root = request.root;
        plan.shape = shape_of(kind, size, size_of(type), world.world_size());
        plan.warmup = request.warmup;
        plan.iterations = request.iterations;
        plan.check = request.check;
        plan.blocking = request.blocking;
        plan.device = options.device;
        const Row row = measure(world, plan, area);
        say(world.rank(), format_row(plan, row, world.world_size()));
        summary.add(plan, row, world.world_size());
        if (empty) return;  // nothing in it has a size, a type or a reduction
      }
      if (!reduces) break;
    }
  }
}

}  // namespace

int run(const Options& options, const Request& request) {
  Communicator world(options);
  if (request.root >= world.world_size()) {
    throw Error::format("root {} is not a rank of a world of {}", request.root, world.world_size());
  }
  say(world.rank(), fmt::format("# af-perf: {}\n# rank 0 on {}, pid {}; warmup {}, iterations {}, "
                                "checks {}, memory {}",
                                world.description(), host_name(), ::getpid(), request.warmup,
                                request.iterations, request.check ? "on" : "off",
                                request.foreign ? "foreign" : "of the communicator"));
  const std::size_t largest = *std::max_element(request.sizes.begin(), request.sizes.end());
  Areas areas(world, std::max<std::size_t>(largest, 64), request.foreign);
  Summary summary;
  for (const OperationKind kind : request.kinds) {
    measure_kind(world, options, request, kind, areas.area(), summary);
  }
  say(world.rank(), summary.text());
  world.barrier().synchronize();  // so that no rank leaves while another still needs it
  return summary.wrong() == 0 ? 0 : 1;
}

}  // namespace af::perf
