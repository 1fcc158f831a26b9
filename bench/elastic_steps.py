#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain data-parallel PyTorch training without an end, for bench_elastic: the same program under
torchrun and under af-launch. Appends one line per step to STEPS/PID: unix seconds, world, size, rank,
when the process was started."""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

with open("/proc/self/stat", encoding="utf-8") as stat:  # in ticks since the boot
    ticks = int(stat.read().rpartition(")")[2].split()[19])
started = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
folder, timeout = sys.argv[1], float(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_function = nn.BCEWithLogitsLoss()
x = torch.randn(512, 20)
y = (x.sum(dim=1, keepdim=True) > 0).float()
# Not torchrun's restart count: each of its agents has its own.
world = f"{os.environ.get('AF_GENERATION', '')}.{os.environ['MASTER_PORT']}"
with open(os.path.join(folder, str(os.getpid())), "a", buffering=1, encoding="ascii") as log:
    while True:
        loss = loss_function(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(f"{time.time():.6f} {world} {dist.get_world_size()} {dist.get_rank()} {started:.3f}\n")
        time.sleep(0.005)  # two cores are to be enough for the processes of three nodes
