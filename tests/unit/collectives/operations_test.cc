// SPDX-License-Identifier: Apache-2.0
// Every operation, type and size class against a plain loop, in worlds of 1 to 5 ranks on one node,
// on a node each, and on two uneven nodes; buffers of allocate() and foreign ones, in place and
// not.
#include <gtest/gtest.h>

#include <cstring>
#include <tuple>

#include "tests/unit/collectives/plain_loop.h"
#include "tests/unit/collectives/world.h"

namespace af::test {
namespace {

enum class Layout { one_node, separate_nodes, two_nodes };

Nodes nodes_of(Layout layout, int ranks) {
  if (layout == Layout::separate_nodes) return separate_nodes(ranks);
  return layout == Layout::two_nodes ? two_nodes(ranks) : one_node(ranks);
}

// A buffer of either kind with guard bytes behind it.
class Area {
 public:
  Area(Communicator& world, std::size_t bytes, bool shared) : bytes_(bytes) {
    if (shared) {
      buffer_ = world.allocate(bytes + kGuard);
    } else {
      own_.resize(bytes + kGuard + 8);
    }
    std::memset(data(), 0x5a, bytes + kGuard);
  }
  // Foreign memory is not even aligned to a cache line.
  unsigned char* data() {
    return own_.empty() ? static_cast<unsigned char*>(buffer_.data()) : own_.data() + 8;
  }
  void set(const Bytes& content, std::size_t at = 0) {
    if (!content.empty()) std::memcpy(data() + at, content.data(), content.size());
  }
  Bytes get(std::size_t at, std::size_t bytes) { return Bytes(data() + at, data() + at + bytes); }
  bool guard_is_whole() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (data()[bytes_ + i] != 0x5a) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t bytes_;
  Buffer buffer_;
  std::vector<unsigned char> own_;
};

class Check {
 public:
  Check(Communicator& world, DataType type, std::size_t count, bool shared, bool in_place)
      : world_(world), type_(type), count_(count), shared_(shared), in_place_(in_place) {}

  void all_reduce(ReduceOp op, const std::vector<double>& scales = {}) {
    Area in(world_, bytes(), shared_), out(world_, bytes(), shared_);
    in.set(input());
    CallOptions call;
    if (!scales.empty()) call.pre_scale = scales[std::size_t(world_.rank())];
    Area& target = in_place_ ? in : out;
    world_.all_reduce(in.data(), target.data(), count_, type_, op, call).synchronize();
    expect(target, 0, reduced(type_, op, world_.world_size(), 0, count_, scales), name_of(op));
    if (!in_place_) {
      EXPECT_EQ(in.get(0, bytes()), input());
    }
  }

  void reduce_scatter(ReduceOp op) {
    const std::size_t world = std::size_t(world_.world_size()), rank = std::size_t(world_.rank());
    Area in(world_, bytes() * world, shared_), out(world_, bytes(), shared_);
    const Bytes all = input_of(type_, world_.rank(), count_ * world);
    in.set(all);
    unsigned char* target = in_place_ ? in.data() + rank * bytes() : out.data();
    world_.reduce_scatter(in.data(), target, count_, type_, op).synchronize();
    Area& area = in_place_ ? in : out;
    expect(area, in_place_ ? rank * bytes() : 0,
           reduced(type_, op, world_.world_size(), rank * count_, count_), "reduce_scatter");
    for (std::size_t r = 0; r < world; ++r) {
      if (in_place_ && r == rank) continue;
      EXPECT_EQ(in.get(r * bytes(), bytes()),
                Bytes(all.begin() + long(r * bytes()), all.begin() + long((r + 1) * bytes())));
    }
  }

  void all_gather() {
    const std::size_t world = std::size_t(world_.world_size()), rank = std::size_t(world_.rank());
    Area in(world_, bytes(), shared_), out(world_, bytes() * world, shared_);
    in.set(input());
    out.set(input(), rank * bytes());
    world_
        .all_gather(in_place_ ? out.data() + rank * bytes() : in.data(), out.data(), count_, type_)
        .synchronize();
    for (std::size_t r = 0; r < world; ++r) {
      expect(out, r * bytes(), input_of(type_, int(r), count_), "all_gather");
    }
  }

  void broadcast(int root) {
    Area in(world_, bytes(), shared_), out(world_, bytes(), shared_);
    const bool is_root = world_.rank() == root;
    if (is_root) in.set(input());
    Area& target = in_place_ ? in : out;
    world_.broadcast(is_root ? in.data() : nullptr, target.data(), count_, type_, root)
        .synchronize();
    expect(target, 0, input_of(type_, root, count_), "broadcast");
  }

 private:
  std::size_t bytes() const { return count_ * size_of(type_); }
  Bytes input() const { return input_of(type_, world_.rank(), count_); }
  void expect(Area& area, std::size_t at, const Bytes& wanted, const char* what) {
    EXPECT_TRUE(area.get(at, wanted.size()) == wanted)
        << what << " of " << count_ << " " << name_of(type_) << " on rank " << world_.rank()
        << (shared_ ? ", shared" : ", foreign") << (in_place_ ? ", in place" : "");
    EXPECT_TRUE(area.guard_is_whole()) << what << " of " << count_ << " " << name_of(type_);
  }

  Communicator& world_;
  DataType type_;
  std::size_t count_;
  bool shared_;
  bool in_place_;
};

class Operations : public testing::TestWithParam<std::tuple<Layout, int>> {
 protected:
  Nodes nodes() const { return nodes_of(std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

void check_all(Communicator& world, DataType type, std::size_t count, bool shared, bool in_place) {
  Check check(world, type, count, shared, in_place);
  for (const ReduceOp op : kOps) check.all_reduce(op);
  check.reduce_scatter(ReduceOp::sum);
  check.all_gather();
  check.broadcast(world.world_size() - 1);
}

TEST_P(Operations, SmallOfEveryType) {
  with_threads(nodes(), [](Communicator& world) {
    for (const DataType type : kTypes) {
      for (const std::size_t count : {std::size_t(0), std::size_t(1), std::size_t(1021)}) {
        for (const bool in_place : {false, true}) check_all(world, type, count, false, in_place);
      }
    }
  });
}

TEST_P(Operations, LargeOfEveryType) {
  with_threads(nodes(), [](Communicator& world) {
    // Five chunks of 256 KiB in every type, and no multiple of anything.
    for (const DataType type : kTypes) {
      check_all(world, type, 1'100'007 / size_of(type), false, true);
    }
  });
}

TEST_P(Operations, SharedForeignInPlaceAndNot) {
  with_threads(nodes(), [](Communicator& world) {
    for (const bool shared : {false, true}) {
      for (const bool in_place : {false, true}) {
        check_all(world, DataType::f32, 16'384, shared, in_place);  // 64 KiB: the last small one
        check_all(world, DataType::f32, 16'385, shared, in_place);  // the first large one
        check_all(world, DataType::bf16, 200'003, shared, in_place);
      }
    }
  });
}

TEST_P(Operations, LargerThanAChunkBetweenNodes) {
  with_threads(nodes(), [](Communicator& world) {
    check_all(world, DataType::f64, 700'001, false, false);  // 5.6 MB
  });
}

TEST_P(Operations, MixedSharedAndForeign) {
  with_threads(nodes(), [](Communicator& world) {
    const std::size_t count = 300'007;
    Buffer buffer = world.allocate(count * 4);
    std::vector<float> own(count);
    const Bytes input = input_of(DataType::f32, world.rank(), count);
    const Bytes wanted = reduced(DataType::f32, ReduceOp::sum, world.world_size(), 0, count);
    // Rank 0 reduces in shared memory, rank 1 from it into its own, the others in their own.
    void* in = world.rank() <= 1 ? buffer.data() : own.data();
    void* out = world.rank() == 0 ? buffer.data() : own.data();
    std::memcpy(in, input.data(), input.size());
    world.all_reduce(in, out, count, DataType::f32).synchronize();
    EXPECT_EQ(std::memcmp(out, wanted.data(), wanted.size()), 0) << "rank " << world.rank();
  });
}

TEST_P(Operations, PreScaleMayDifferBetweenRanks) {
  with_threads(nodes(), [](Communicator& world) {
    std::vector<double> scales;
    for (int r = 0; r < world.world_size(); ++r) scales.push_back(r % 2 == 0 ? 2 : 3);
    for (const DataType type : kTypes) {
      if (is_unsigned(type)) continue;  // see the next test
      for (const std::size_t count : {std::size_t(77), std::size_t(300'007)}) {
        Check(world, type, count, false, false).all_reduce(ReduceOp::sum, scales);
      }
    }
    for (const ReduceOp op : kOps) {
      Check(world, DataType::f32, 50'001, true, true).all_reduce(op, scales);
    }
  });
}

TEST_P(Operations, ManyInOrderWithoutWaiting) {
  with_threads(nodes(), [](Communicator& world) {
    constexpr int kBuckets = 40;
    std::vector<std::vector<float>> buckets;
    std::vector<Work> works;
    for (int b = 0; b < kBuckets; ++b) {
      buckets.emplace_back(b % 3 == 0 ? 40'000 : 100, float(world.rank() + b));
    }
    for (auto& bucket : buckets) {
      works.push_back(world.all_reduce(bucket.data(), bucket.data(), bucket.size(), DataType::f32,
                                       ReduceOp::max));
    }
    for (int b = kBuckets - 1; b >= 0; --b) {
      works[std::size_t(b)].synchronize();
      EXPECT_TRUE(works[std::size_t(b)].done());
      EXPECT_EQ(works[std::size_t(b)].generation(), 7u);
      for (float v : buckets[std::size_t(b)]) ASSERT_EQ(v, float(world.world_size() - 1 + b));
    }
  });
}

TEST_P(Operations, OnTheCallerAlone) {
  with_threads(
      nodes(),
      [](Communicator& world) {
        for (int i = 0; i < 3; ++i) {
          check_all(world, DataType::i32, 100'003, true, false);
          world.barrier().synchronize();
        }
      },
      [](Options& options) { options.progress_thread = false; });
}

std::string world_name(const testing::TestParamInfo<std::tuple<Layout, int>>& one) {
  static constexpr const char* kNames[] = {"OneNode", "SeparateNodes", "TwoNodes"};
  return kNames[int(std::get<0>(one.param))] + std::to_string(std::get<1>(one.param));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Operations,
    testing::Values(std::tuple(Layout::one_node, 1), std::tuple(Layout::one_node, 2),
                    std::tuple(Layout::one_node, 3), std::tuple(Layout::one_node, 4),
                    std::tuple(Layout::one_node, 5), std::tuple(Layout::separate_nodes, 2),
                    std::tuple(Layout::separate_nodes, 3), std::tuple(Layout::separate_nodes, 4),
                    std::tuple(Layout::two_nodes, 3), std::tuple(Layout::two_nodes, 4),
                    std::tuple(Layout::two_nodes, 5)),
    world_name);

TEST(OperationsLayout, RanksOfTwoNodesInterleaved) {
  const Nodes nodes = {"a", "b", "a", "b", "a"};
  with_threads(nodes, [](Communicator& world) {
    for (const std::size_t count : {std::size_t(3), std::size_t(20'001), std::size_t(700'001)}) {
      check_all(world, DataType::f64, count, false, true);
    }
    EXPECT_EQ(world.description(), "local, 5 ranks on 2 nodes (3+2): shared memory and TCP");
  });
}

TEST(OperationsLayout, RanksAsProcesses) {
  for (const Nodes& nodes : {one_node(4), separate_nodes(3), two_nodes(4)}) {
    Processes processes;
    for (int r = 0; r < int(nodes.size()); ++r) {
      processes.start(options_for(nodes, r), [](const Options& options) -> std::string {
        Communicator world(options);
        for (const bool shared : {false, true}) {
          check_all(world, DataType::f32, 257, shared, false);
          check_all(world, DataType::f16, 300'007, shared, true);
        }
        return testing::Test::HasFailure() ? "wrong" : "right";
      });
    }
    for (int r = 0; r < int(nodes.size()); ++r) EXPECT_EQ(processes.result(r), "right");
  }
}

}  // namespace
}  // namespace af::test
