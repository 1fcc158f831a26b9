// SPDX-License-Identifier: Apache-2.0
// What tests can do to the fake libcudart and libnccl beyond their interfaces.
#pragma once

#include <functional>

#define FAKE_PUBLIC __attribute__((visibility("default")))

// How many GPUs there are (4 at first).
FAKE_PUBLIC void fake_cuda_set_devices(int count);
// A "kernel" on a stream; on the null stream it runs at once.
FAKE_PUBLIC void fake_cuda_enqueue(void* stream, std::function<void()> job);

// From now on every communicator of that rank reports this as its asynchronous error; 0: none.
FAKE_PUBLIC void fake_nccl_set_async_error(int rank, int result);
// Communicators that were made and neither destroyed nor aborted.
FAKE_PUBLIC int fake_nccl_alive();
// Operators made by ncclRedOpCreatePreMulSum and not destroyed.
FAKE_PUBLIC int fake_nccl_operators();
