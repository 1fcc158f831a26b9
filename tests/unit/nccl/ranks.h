// SPDX-License-Identifier: Apache-2.0
// Ranks as threads, each with a nccl backend on the fake libraries.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "af/store.h"
#include "collectives/nccl/backend.h"

namespace af::nccl {

inline Options options_of(int rank, int world, const std::shared_ptr<Store>& store,
                          std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  Options options;
  options.rank = rank;
  options.world_size = world;
  options.store = store;
  options.timeout = timeout;
  options.backend = BackendKind::nccl;
  options.device = rank;
  return options;
}

// Runs body(rank) in one thread per rank; what a rank throws is its entry in the result.
inline std::map<int, CommunicatorError> run_ranks(const std::vector<int>& ranks,
                                                  const std::function<void(int)>& body) {
  std::map<int, CommunicatorError> errors;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (const int rank : ranks) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const CommunicatorError& error) {
        std::lock_guard lock(mutex);
        errors.emplace(rank, error);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

// One operation, submitted alone.
inline std::shared_ptr<WorkState> submit_one(NcclBackend& backend, const Operation& operation,
                                             bool grouped = false) {
  return backend.submit({&operation, 1}, grouped).front();
}

}  // namespace af::nccl
