// SPDX-License-Identifier: Apache-2.0
#include "perf/measure.h"

#include <chrono>
#include <vector>

#include "perf/device_memory.h"
#include "perf/pattern.h"

namespace af::perf {
namespace {

struct Pointers {
  const void* in;
  void* out;
};

class Measurement {
 public:
  Measurement(Communicator& world, const Plan& plan, const Area& area)
      : world_(world), plan_(plan), area_(area), element_(size_of(plan.type)) {}

  Figure run(bool in_place) {
    const Pointers at = pointers(in_place);
    Figure figure;
    // Before the timing: repeated sums in place leave values that nothing is known of.
    if (plan_.check && plan_.kind != OperationKind::barrier) {
      prepare(at);
      issue(at).synchronize();
      figure.wrong = total(count_wrong(at));
    }
    repeat(at, plan_.warmup);
    world_.barrier().synchronize();
    const auto start = std::chrono::steady_clock::now();
    repeat(at, plan_.iterations);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    figure.seconds = mean(took.count() / plan_.iterations);
    return figure;
  }

 private:
  // Bytes of one rank's part where input and output differ in size.
  std::size_t part() const { return plan_.shape.count * element_; }

  Pointers pointers(bool in_place) const {
    if (!in_place) return {area_.first, area_.second};
    char* all = static_cast<char*>(area_.first);
    char* mine = all + static_cast<std::size_t>(world_.rank()) * part();
    if (plan_.kind == OperationKind::all_gather) return {mine, all};
    if (plan_.kind == OperationKind::reduce_scatter) return {all, mine};
    return {all, all};
  }

  Work issue(const Pointers& at) {
    const std::size_t count = plan_.shape.count;
    const CallOptions call{.blocking = plan_.blocking};
    switch (plan_.kind) {
      case OperationKind::all_reduce:
        return world_.all_reduce(at.in, at.out, count, plan_.type, plan_.op, call);
      case OperationKind::broadcast:
        return world_.broadcast(at.in, at.out, count, plan_.type, plan_.root, call);
      case OperationKind::all_gather:
        return world_.all_gather(at.in, at.out, count, plan_.type, call);
      case OperationKind::reduce_scatter:
        return world_.reduce_scatter(at.in, at.out, count, plan_.type, plan_.op, call);
      case OperationKind::barrier:
        break;
    }
    return world_.barrier(call);
  }

  void repeat(const Pointers& at, int times) {
    std::vector<Work> works;
    works.reserve(static_cast<std::size_t>(times));
    for (int i = 0; i < times; ++i) works.push_back(issue(at));
    for (const Work& work : works) work.synchronize();
  }

  // Elements of `in` and `out` of this rank.
  std::size_t elements(OperationKind larger) const {
    const auto world = static_cast<std::size_t>(world_.world_size());
    return plan_.shape.count * (plan_.kind == larger ? world : 1);
  }

  void prepare(const Pointers& at) {
    const std::size_t in = elements(OperationKind::reduce_scatter);
    const std::size_t out = elements(OperationKind::all_gather);
    host_.assign(out * element_, 0x5a);  // so that an element nobody wrote is seen
    copy_in(at.out, host_.data(), host_.size(), plan_.device);
    host_.resize(in * element_);
    fill(host_.data(), in, plan_.type, world_.rank());
    copy_in(const_cast<void*>(at.in), host_.data(), host_.size(), plan_.device);
  }

  std::size_t count_wrong(const Pointers& at) {
    const std::size_t count = plan_.shape.count, out = elements(OperationKind::all_gather);
    host_.resize(out * element_);
    copy_out(host_.data(), at.out, host_.size(), plan_.device);
    switch (plan_.kind) {
      case OperationKind::all_reduce:
        return count_wrong_reduced(host_.data(), count, plan_.type, plan_.op, world_.world_size());
      case OperationKind::broadcast:
        return count_wrong_copied(host_.data(), count, plan_.type, plan_.root);
      case OperationKind::reduce_scatter:
        return count_wrong_reduced(host_.data(), count, plan_.type, plan_.op, world_.world_size(),
                                   static_cast<std::size_t>(world_.rank()) * count);
      case OperationKind::all_gather: {
        std::size_t wrong = 0;
        for (int rank = 0; rank < world_.world_size(); ++rank) {
          wrong += count_wrong_copied(host_.data() + static_cast<std::size_t>(rank) * part(), count,
                                      plan_.type, rank);
        }
        return wrong;
      }
      case OperationKind::barrier:
        break;
    }
    return 0;
  }

  // Over all ranks, through the communicator itself and its own kind of memory.
  double reduce_one(double value, ReduceOp op) {
    void* place = scratch();
    copy_in(place, &value, sizeof value, plan_.device);
    world_.all_reduce(place, place, 1, DataType::f64, op).synchronize();
    copy_out(&value, place, sizeof value, plan_.device);
    return value;
  }
  double mean(double value) { return reduce_one(value, ReduceOp::avg); }
  std::uint64_t total(std::size_t value) {
    return static_cast<std::uint64_t>(reduce_one(static_cast<double>(value), ReduceOp::sum));
  }
  void* scratch() { return plan_.device < 0 ? &one_ : area_.second; }

  Communicator& world_;
  const Plan& plan_;
  const Area& area_;
  const std::size_t element_;
  std::vector<char> host_;
  double one_ = 0;
};

}  // namespace

Row measure(Communicator& world, const Plan& plan, const Area& area) {
  Measurement measurement(world, plan, area);
  Row row;
  row.out_of_place = measurement.run(false);
  row.in_place = plan.kind == OperationKind::barrier ? row.out_of_place : measurement.run(true);
  return row;
}

}  // namespace af::perf
