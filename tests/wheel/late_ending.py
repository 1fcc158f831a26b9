# SPDX-License-Identifier: Apache-2.0
"""Ends just when a thread of Gloo wants the interpreter, if late_gloo.c is preloaded."""
import atexit
import time

# The last of all that Python calls at its end, and in C: meanwhile no thread gets the interpreter.
atexit.register(sum, range(60_000_000))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Long:
    def __del__(self, sleep=time.sleep):
        sleep(1)


dist.init_process_group("gloo", init_method="env://")
group = dist.distributed_c10d._get_default_group()  # as a model of FSDP keeps it
dist.all_reduce(torch.ones(4))
long = Long()  # the interpreter is a while in ending, and lets threads run meanwhile
dist.destroy_process_group()
print("done")
