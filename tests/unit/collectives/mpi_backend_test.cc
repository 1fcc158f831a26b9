// SPDX-License-Identifier: Apache-2.0
// The mpi backend on a stand-in for MPI: pieces, types that MPI has not, and who is missing.
// (With the real MPI: tests/cluster/test_perf.py.)
#include "collectives/mpi/backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <thread>

#include "collectives/half.h"

namespace af {
namespace {

using Kind = CommunicatorError::Kind;
using std::chrono::milliseconds;

// What the test and the transport share; the backend owns the transport.
struct Wire {
  std::deque<MpiNotice> incoming;
  std::vector<std::pair<int, MpiNotice>> sent;
  std::vector<std::size_t> counts;  // of the operations that were started
  bool never_done = false;
  std::string failure;
  // What the other ranks say when they are asked; by rank.
  std::vector<std::optional<std::int64_t>> answers = std::vector<std::optional<std::int64_t>>(3);
  MpiTransport::Threads threads = MpiTransport::Threads::any;
  bool broken = false;

  std::vector<MpiNotice::Kind> kinds_sent_to(int rank) const {
    std::vector<MpiNotice::Kind> kinds;
    for (const auto& [to, notice] : sent) {
      if (to == rank) kinds.push_back(notice.kind);
    }
    return kinds;
  }
};

// This is rank 1 of 3; ranks 0 and 2 put in what it puts in.
class FakeTransport final : public MpiTransport {
 public:
  explicit FakeTransport(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  int rank() const override { return 1; }
  int size() const override { return 3; }
  Threads threads() const override { return wire_->threads; }
  std::string version() const override { return "fake"; }
  void start_setup() override {}
  void mark_broken() override { wire_->broken = true; }

  void start(const Operation& o) override {
    if (!wire_->failure.empty()) throw std::runtime_error(wire_->failure);
    wire_->counts.push_back(o.count);
    const std::size_t bytes = o.count * size_of(o.type);
    if (o.kind == OperationKind::all_gather) {
      const std::vector<char> in(static_cast<const char*>(o.in),
                                 static_cast<const char*>(o.in) + bytes);
      for (int r = 0; r < 3; ++r)
        std::memcpy(static_cast<char*>(o.out) + r * bytes, in.data(), bytes);
    } else if (o.kind == OperationKind::all_reduce || o.kind == OperationKind::reduce_scatter) {
      ASSERT_EQ(o.type, DataType::f32);
      const std::size_t offset = o.kind == OperationKind::reduce_scatter ? o.count : 0;
      for (std::size_t i = 0; i < o.count; ++i) {
        const float value = static_cast<const float*>(o.in)[offset + i];
        static_cast<float*>(o.out)[i] = o.op == ReduceOp::sum ? 3 * value : value;
      }
    }
    polls_ = 0;
  }
  bool test() override { return !wire_->never_done && ++polls_ > 2; }

  void send(int rank, const MpiNotice& notice) override {
    wire_->sent.emplace_back(rank, notice);
    const auto& answer = wire_->answers[static_cast<std::size_t>(rank)];
    if (notice.kind != MpiNotice::Kind::query || !answer) return;
    MpiNotice reply;
    reply.kind = MpiNotice::Kind::answer;
    reply.sender = rank;
    reply.sequence = *answer;
    wire_->incoming.push_back(reply);
  }
  bool receive(MpiNotice* notice) override {
    if (wire_->incoming.empty()) return false;
    *notice = wire_->incoming.front();
    wire_->incoming.pop_front();
    return true;
  }

 private:
  std::shared_ptr<Wire> wire_;
  int polls_ = 0;
};

struct MpiBackendTest : testing::Test {
  std::unique_ptr<MpiBackend> make(std::size_t piece_bytes = MpiBackend::kPieceBytes) {
    Options options;
    options.rank = 1;
    options.world_size = 3;
    options.timeout = milliseconds(30);
    return std::make_unique<MpiBackend>(options, std::make_unique<FakeTransport>(wire),
                                        piece_bytes);
  }

  static void run(MpiBackend& backend, Operation operation) {
    operation.blocking = true;
    for (const auto& state : backend.submit({&operation, 1}, false)) {
      if (state) state->synchronize();
    }
  }

  // The error of a barrier that never ends.
  static CommunicatorError failure_of(MpiBackend& backend) {
    try {
      run(backend, Operation{});
    } catch (const CommunicatorError& error) {
      return error;
    }
    ADD_FAILURE() << "the barrier ended";
    return CommunicatorError(Kind::system, "");
  }

  std::shared_ptr<Wire> wire = std::make_shared<Wire>();
};

Operation operation_of(OperationKind kind, const void* in, void* out, std::size_t count,
                       DataType type, ReduceOp op = ReduceOp::sum, double scale = 1) {
  Operation o;
  o.kind = kind;
  o.in = in;
  o.out = out;
  o.count = count;
  o.type = type;
  o.op = op;
  o.pre_scale = scale;
  return o;
}

constexpr std::size_t kCount = 10;

TEST_F(MpiBackendTest, CutsAReductionIntoPieces) {
  const auto backend = make(4 * sizeof(float));
  std::vector<float> in(kCount), out(kCount);
  std::iota(in.begin(), in.end(), 1.0f);
  run(*backend, operation_of(OperationKind::all_reduce, in.data(), out.data(), kCount,
                             DataType::f32, ReduceOp::avg, 2));
  EXPECT_EQ(wire->counts, (std::vector<std::size_t>{4, 4, 2}));
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(out[i], 2.0f * static_cast<float>(i + 1));
  EXPECT_EQ(in[9], 10.0f);
}

TEST_F(MpiBackendTest, GathersPiecesToTheirPlaces) {
  const auto backend = make(12);  // 4 bytes of each rank at a time
  std::vector<std::uint8_t> in(kCount), out(3 * kCount), in_place(3 * kCount);
  std::iota(in.begin(), in.end(), std::uint8_t{1});
  run(*backend,
      operation_of(OperationKind::all_gather, in.data(), out.data(), kCount, DataType::u8));
  EXPECT_EQ(wire->counts, (std::vector<std::size_t>{4, 4, 2}));
  std::copy(in.begin(), in.end(), in_place.begin() + kCount);
  run(*backend, operation_of(OperationKind::all_gather, in_place.data() + kCount, in_place.data(),
                             kCount, DataType::u8));
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % kCount + 1);
  EXPECT_EQ(in_place, out);
}

TEST_F(MpiBackendTest, ScattersPiecesInPlaceAndLeavesTheRestOfTheInput) {
  const auto backend = make(3 * 4 * sizeof(float));
  std::vector<float> all(3 * kCount);
  std::iota(all.begin(), all.end(), 0.0f);
  run(*backend, operation_of(OperationKind::reduce_scatter, all.data(), all.data() + kCount, kCount,
                             DataType::f32));
  EXPECT_EQ(wire->counts, (std::vector<std::size_t>{4, 4, 2}));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool mine = i / kCount == 1;
    EXPECT_EQ(all[i], static_cast<float>(i) * (mine ? 3 : 1)) << i;
  }
}

TEST_F(MpiBackendTest, BroadcastsBytesInPieces) {
  const auto backend = make(8);
  std::vector<double> out(5);
  Operation o = operation_of(OperationKind::broadcast, nullptr, out.data(), 5, DataType::f64);
  o.root = 0;
  run(*backend, o);
  EXPECT_EQ(wire->counts, (std::vector<std::size_t>{8, 8, 8, 8, 8}));
}

TEST_F(MpiBackendTest, Reduces16BitTypesAsF32) {
  const auto backend = make(4 * sizeof(float));
  for (const DataType type : {DataType::f16, DataType::bf16}) {
    const bool half = type == DataType::f16;
    const auto narrow = half ? f32_to_f16 : f32_to_bf16;
    std::vector<std::uint16_t> in(kCount, narrow(0.5f)), out(kCount), all(3 * kCount, narrow(2.0f));
    run(*backend, operation_of(OperationKind::all_reduce, in.data(), out.data(), kCount, type,
                               ReduceOp::sum, 3));
    EXPECT_EQ(out, std::vector<std::uint16_t>(kCount, narrow(4.5f)));
    run(*backend, operation_of(OperationKind::reduce_scatter, all.data(), out.data(), kCount, type,
                               ReduceOp::avg, 0.25));
    EXPECT_EQ(out, std::vector<std::uint16_t>(kCount, narrow(0.5f)));
    EXPECT_EQ(in, std::vector<std::uint16_t>(kCount, narrow(0.5f)));
  }
}

TEST_F(MpiBackendTest, ATimeoutNamesTheSilentAndTheLate) {
  const auto backend = make();
  run(*backend, Operation{});
  run(*backend, Operation{});
  wire->never_done = true;  // the third, which rank 0 has not entered; rank 2 is silent
  wire->answers = {2, std::nullopt, std::nullopt};
  const CommunicatorError error = failure_of(*backend);
  EXPECT_EQ(error.kind(), Kind::timeout);
  EXPECT_EQ(error.ranks(), (std::vector<int>{0, 2}));
  EXPECT_STREQ(error.what(), "barrier on rank 1: ranks 0 and 2 did not take part within 0.03 s");
  // All are told, and then nothing works any more.
  EXPECT_EQ(wire->sent.back().second.kind, MpiNotice::Kind::gave_up);
  EXPECT_STREQ(wire->sent.back().second.text, "0,2");
  EXPECT_TRUE(wire->broken);
  wire->never_done = false;
  EXPECT_EQ(failure_of(*backend).kind(), Kind::timeout);
}

TEST_F(MpiBackendTest, ATimeoutWithAllRanksThereSaysSo) {
  const auto backend = make();
  wire->never_done = true;
  wire->answers = {1, std::nullopt, 7};
  const CommunicatorError error = failure_of(*backend);
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_STREQ(error.what(), "barrier on rank 1: not finished after 0.03 s though all ranks came");
}

TEST_F(MpiBackendTest, AnswersWhoAsksAndFailsWithWhoGaveUp) {
  const auto backend = make();
  wire->never_done = true;
  MpiNotice query, gave_up;
  query.kind = MpiNotice::Kind::query;
  query.sender = 2;
  query.sequence = 1;
  gave_up.kind = MpiNotice::Kind::gave_up;
  gave_up.sender = 2;
  std::strcpy(gave_up.text, "0");
  wire->incoming = {query, gave_up};
  const CommunicatorError error = failure_of(*backend);
  EXPECT_EQ(error.kind(), Kind::timeout);
  EXPECT_EQ(error.ranks(), std::vector<int>{0});
  EXPECT_STREQ(error.what(), "rank 2 gave up waiting for rank 0 (noticed by rank 1 in barrier)");
  ASSERT_FALSE(wire->sent.empty());
  EXPECT_EQ(wire->sent.front().first, 2);
  EXPECT_EQ(wire->sent.front().second.kind, MpiNotice::Kind::answer);
  EXPECT_EQ(wire->sent.front().second.sequence, 1);
}

TEST_F(MpiBackendTest, AnAbortIsToldOnceAndHeard) {
  auto backend = make();
  backend->abort("enough");
  backend->abort("again");
  EXPECT_EQ(wire->kinds_sent_to(0), std::vector{MpiNotice::Kind::aborted});
  EXPECT_STREQ(wire->sent.front().second.text, "enough");
  EXPECT_EQ(failure_of(*backend).kind(), Kind::aborted);

  wire = std::make_shared<Wire>();
  backend = make();
  MpiNotice aborted;
  aborted.kind = MpiNotice::Kind::aborted;
  aborted.sender = 0;
  std::strcpy(aborted.text, "disk full");
  wire->incoming = {aborted};
  wire->never_done = true;
  const CommunicatorError error = failure_of(*backend);
  EXPECT_EQ(error.kind(), Kind::aborted);
  EXPECT_EQ(error.ranks(), std::vector<int>{0});
}

TEST_F(MpiBackendTest, LeavingTellsNobody) {
  make();
  EXPECT_TRUE(wire->sent.empty());
  EXPECT_FALSE(wire->broken);
}

TEST_F(MpiBackendTest, AnErrorOfMpiComesWithItsWords) {
  const auto backend = make();
  wire->failure = "MPI_Ibarrier: MPI_ERR_OTHER";
  const CommunicatorError error = failure_of(*backend);
  EXPECT_EQ(error.kind(), Kind::system);
  EXPECT_STREQ(error.what(), "mpi backend: rank 1: barrier: MPI_Ibarrier: MPI_ERR_OTHER");
}

TEST_F(MpiBackendTest, OneThreadedMpiIsNotCalledFromAnotherThread) {
  wire->threads = MpiTransport::Threads::one;
  const auto backend = make();
  run(*backend, Operation{});
  std::thread other([&] {
    EXPECT_NE(std::string(failure_of(*backend).what()).find("MPI_THREAD_MULTIPLE"),
              std::string::npos);
  });
  other.join();
}

TEST_F(MpiBackendTest, FormingTimesOut) {
  wire->never_done = true;
  EXPECT_THROW(make(), CommunicatorError);
  EXPECT_TRUE(wire->broken);
}

}  // namespace
}  // namespace af
