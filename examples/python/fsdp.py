#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model larger than a GPU in plain PyTorch: FullyShardedDataParallel, one process for each GPU.

Needs PyTorch 2.1 or later (an environment of your own: --af-env). On the CPU it runs too, over Gloo.

    af-launch python fsdp.py
    torchrun --nproc-per-node=2 fsdp.py

It saves a checkpoint after each epoch and, started again, goes on from there, also with another number of
processes. Environment: EPOCHS (5), AF_CHECKPOINT_DIR (where state.pt goes).
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = int(os.environ.get("EPOCHS", "5"))
PATH = os.path.join(os.environ.get("AF_CHECKPOINT_DIR", "checkpoints"), "state.pt")

cuda = torch.cuda.is_available()
nccl = cuda and os.environ.get("AF_BACKEND", "nccl") == "nccl"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if nccl else "gloo", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(1)  # the same events and the same first weights everywhere
X = torch.randn(100_000, 20)
y = (X.sum(dim=1, keepdim=True) > 0).float()
data = TensorDataset(X, y)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=max(1, 512 // world), sampler=sampler)

# 1. Each GPU keeps a share of the parameters, and holds one layer whole at a time.
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.BCEWithLogitsLoss()

# 2. A checkpoint goes through FSDP: the GPUs put the model together, and hand it to the first one.
FSDP.set_state_dict_type(
    model,
    StateDictType.FULL_STATE_DICT,
    FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
    FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
)

first_epoch = 0
if os.path.exists(PATH):
    state = torch.load(PATH, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"]))
    first_epoch = state["epoch"] + 1
    if rank == 0:
        print(f"resumed after epoch {state['epoch']}")
dist.barrier()  # no process may still look for the checkpoint when the first one writes the next

for epoch in range(first_epoch, EPOCHS):
    sampler.set_epoch(epoch)
    for X_batch, y_batch in loader:
        loss = loss_fn(model(X_batch.to(device)), y_batch.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    mean = loss.detach() / world
    dist.all_reduce(mean)
    # Called by all, though the first one alone gets something.
    state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer), "epoch": epoch}
    if rank == 0:
        print(f"epoch {epoch}: loss {mean.item():.4f}, world {world}")
        os.makedirs(os.path.dirname(PATH), exist_ok=True)
        torch.save(state, PATH + ".tmp")
        os.replace(PATH + ".tmp", PATH)

if rank == 0:
    print(f"checkpoint {PATH}")
dist.destroy_process_group()
