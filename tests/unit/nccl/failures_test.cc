// SPDX-License-Identifier: Apache-2.0
// The nccl backend when something is missing: ranks, GPUs, patience. On the fake libraries.
#include "collectives/cancel.h"
#include "tests/unit/nccl/fake/hooks.h"
#include "tests/unit/nccl/ranks.h"

namespace af::nccl {
namespace {

using Kind = CommunicatorError::Kind;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

Operation barrier() {
  return Operation{};
}

TEST(NcclFailures, NoGpuIsOneClearLine) {
  fake_cuda_set_devices(0);
  try {
    NcclBackend backend(options_of(0, 1, nullptr));
    ADD_FAILURE() << "a communicator without a GPU";
  } catch (const CommunicatorError& error) {
    EXPECT_EQ(error.kind(), Kind::system);
    EXPECT_STREQ(error.what(),
                 "the nccl backend was asked for device 0, but CUDA sees no GPU here: no "
                 "CUDA-capable device is detected; ask for a GPU, or use backend local with host "
                 "memory");
  }
  fake_cuda_set_devices(4);
  Options options = options_of(0, 1, nullptr);
  for (const int device : {-1, 4}) {
    options.device = device;
    EXPECT_THROW(NcclBackend{options}, CommunicatorError) << device;
  }
}

TEST(NcclFailures, FormingNamesTheRanksThatDidNotCome) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 2}, [&](int rank) {
    NcclBackend backend(options_of(rank, 4, store, milliseconds(400)));
  });
  ASSERT_EQ(errors.size(), 2u);
  for (const auto& [rank, error] : errors) {
    EXPECT_EQ(error.kind(), Kind::timeout) << error.what();
    EXPECT_EQ(error.ranks(), (std::vector<int>{1, 3})) << error.what();
  }
  EXPECT_EQ(fake_nccl_alive(), 0);
}

// As af::World does when its world is lost meanwhile.
TEST(NcclFailures, FormingMayBeCalledOff) {
  const auto cancel = std::make_shared<Cancel>();
  const auto store = make_in_process_store();
  std::thread caller([&] {
    (void)store->get("nccl/0/world/came/0", seconds(20));
    cancel->raise("the world is lost");
  });
  const auto errors = run_ranks({0}, [&](int rank) {
    Options options = options_of(rank, 2, store, seconds(600));
    options.cancel = cancel;
    NcclBackend backend(options);
  });
  caller.join();
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors.at(0).kind(), Kind::aborted);
  EXPECT_STREQ(errors.at(0).what(), "the world is lost");
  EXPECT_EQ(fake_nccl_alive(), 0);
}

TEST(NcclFailures, WithoutRank0ThereIsNoId) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks(
      {1}, [&](int rank) { NcclBackend backend(options_of(rank, 2, store, milliseconds(100))); });
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors.at(1).ranks(), std::vector<int>{0});
}

// Rank 2 never issues the operation, as if it were stopped; it stays alive meanwhile.
TEST(NcclFailures, AnOperationNamesTheRankThatDidNotTakePart) {
  const auto store = make_in_process_store();
  std::atomic<int> through{0};
  const auto errors = run_ranks({0, 1, 2}, [&](int rank) {
    NcclBackend backend(options_of(rank, 3, store, milliseconds(600)));
    submit_one(backend, barrier())->synchronize();
    if (rank == 2) {
      while (through < 2) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    struct Counted {
      std::atomic<int>& count;
      ~Counted() { ++count; }
    } counted{through};
    const auto start = Clock::now();
    const auto work = submit_one(backend, barrier());
    try {
      work->synchronize();
      ADD_FAILURE() << "a barrier without rank 2";
    } catch (const CommunicatorError&) {
      EXPECT_LT(Clock::now() - start, seconds(5));
      EXPECT_TRUE(work->done());
      EXPECT_THROW(submit_one(backend, barrier()), CommunicatorError);  // broken from now on
      throw;
    }
  });
  ASSERT_EQ(errors.size(), 2u);
  for (const auto& [rank, error] : errors) {
    EXPECT_EQ(error.kind(), Kind::timeout) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{2}) << error.what();
  }
  EXPECT_EQ(fake_nccl_alive(), 0);
}

TEST(NcclFailures, AbortFreesABlockedThreadAndTellsTheOthers) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 1, 2}, [&](int rank) {
    NcclBackend backend(options_of(rank, 3, store));
    if (rank == 2) {  // issues nothing; says so
      backend.abort("disk full");
      return;
    }
    const auto work = submit_one(backend, barrier());
    if (rank == 0) {
      std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(20));
        backend.abort("given up");
      });
      const auto start = Clock::now();
      EXPECT_THROW(work->synchronize(), CommunicatorError);
      EXPECT_LT(Clock::now() - start, seconds(1));
      other.join();
    }
    work->synchronize();
  });
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors.at(0).kind(), Kind::aborted);
  EXPECT_NE(std::string(errors.at(0).what()).find("given up"), std::string::npos);
  // Rank 1 hears of it through the store, long before its timeout of 20 s.
  EXPECT_EQ(errors.at(1).kind(), Kind::aborted) << errors.at(1).what();
}

TEST(NcclFailures, AnAsynchronousErrorBreaksTheCommunicator) {
  const auto store = make_in_process_store();
  const auto errors = run_ranks({0, 1}, [&](int rank) {
    NcclBackend backend(options_of(rank, 2, store));
    if (rank == 1) {  // dies: the other rank's NCCL notices the closed connection
      fake_nccl_set_async_error(0, ncclRemoteError);
      return;
    }
    submit_one(backend, barrier())->synchronize();
  });
  fake_nccl_set_async_error(0, ncclSuccess);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors.at(0).kind(), Kind::peer_lost) << errors.at(0).what();
}

TEST(NcclFailures, LeavingWithAnOperationInFlightDoesNotHang) {
  const auto store = make_in_process_store();
  std::shared_ptr<WorkState> work;
  const auto errors = run_ranks({0, 1}, [&](int rank) {
    NcclBackend backend(options_of(rank, 2, store));
    if (rank == 0) work = submit_one(backend, barrier());
  });
  EXPECT_TRUE(errors.empty());
  EXPECT_TRUE(work->done());
  EXPECT_THROW(work->synchronize(), CommunicatorError);  // the handle outlives the communicator
  EXPECT_EQ(fake_nccl_alive(), 0);
}

}  // namespace
}  // namespace af::nccl
