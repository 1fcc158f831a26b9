// SPDX-License-Identifier: Apache-2.0
#include "collectives/local/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace af::local {
namespace {

// Not FUTEX_PRIVATE_FLAG: the waker is another process. The low half comes first on little-endian.
long futex(Counter& counter, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&counter.value), operation, value,
                 timeout, nullptr, 0);
}

}  // namespace

void sleep_on(Counter& counter, std::uint64_t seen, std::chrono::nanoseconds at_most) {
  const timespec timeout = {time_t(at_most.count() / 1'000'000'000),
                            long(at_most.count() % 1'000'000'000)};
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (counter.value.load(std::memory_order_seq_cst) == seen) {
    futex(counter, FUTEX_WAIT, std::uint32_t(seen), &timeout);
  }
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void wake_sleepers(Counter& counter) {
  futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace af::local
