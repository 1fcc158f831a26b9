// SPDX-License-Identifier: Apache-2.0
// Closes a communicator's connections in forked children.
//
// The end of a rank reaches its peers as the end of its connections. A child that was forked
// without exec (a DataLoader worker) holds copies of them: if it outlived the rank, nobody would
// notice.
#pragma once

#include <vector>

namespace af::local {

class ForkGuard {
 public:
  explicit ForkGuard(std::vector<int> fds);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  std::vector<int> fds_;
};

}  // namespace af::local
