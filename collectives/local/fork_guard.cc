// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

namespace af::local {
namespace {

// Never destroyed: a fork may come after static destructors.
std::mutex& mutex() {
  static auto* one = new std::mutex;
  return *one;
}

std::vector<const std::vector<int>*>& guarded() {
  static auto* all = new std::vector<const std::vector<int>*>;
  return *all;
}

void before_fork() {
  mutex().lock();
}
void in_parent() {
  mutex().unlock();
}
void in_child() {
  for (const auto* fds : guarded()) {
    for (int fd : *fds) close(fd);
  }
  guarded().clear();
  mutex().unlock();
}

}  // namespace

ForkGuard::ForkGuard(std::vector<int> fds) : fds_(std::move(fds)) {
  static const int registered = pthread_atfork(before_fork, in_parent, in_child);
  (void)registered;  // out of memory: then only the convenience is missing
  std::lock_guard lock(mutex());
  guarded().push_back(&fds_);
}

ForkGuard::~ForkGuard() {
  std::lock_guard lock(mutex());
  std::erase(guarded(), &fds_);
}

}  // namespace af::local
