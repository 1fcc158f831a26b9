# SPDX-License-Identifier: Apache-2.0
"""Steers a listing that runs as it is: Python imports this by itself where its folder is in PYTHONPATH.

The random numbers are the same in each run. Each process says how many parameters it gives its optimizer.
AF_TEST_KILL=RANK:STEP ends that rank of the first world with SIGKILL, just before the backward of its STEP.
"""
import os
import signal

import torch

torch.manual_seed(0)

make_adam = torch.optim.Adam.__init__
plain_backward = torch.Tensor.backward
steps = 0


def adam(self, params, *arguments, **options):
    params = list(params)
    print(f"holds {sum(p.numel() for p in params)} parameters", flush=True)
    make_adam(self, params, *arguments, **options)


def backward(*arguments, **options):
    global steps
    steps += 1
    here = f"{os.environ.get('RANK')}:{steps}"
    if here == os.environ.get("AF_TEST_KILL") and os.environ.get("AF_GENERATION") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return plain_backward(*arguments, **options)


torch.optim.Adam.__init__ = adam
torch.Tensor.backward = backward
