#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch training on several GPUs: DistributedDataParallel, one process for each GPU.

The same events and network as in one_gpu.py. The processes find each other through the environment
variables that every launcher sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT):

    af-launch python data_parallel.py
    torchrun --nproc-per-node=2 data_parallel.py

It saves a checkpoint after each epoch and, started again, goes on from there.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--events", type=int, default=50_000)
parser.add_argument(
    "--checkpoints",
    default=os.environ.get("AF_CHECKPOINT_DIR", "checkpoints"),
    help="directory for state.pt (default: what af-launch gives the job)",
)
args = parser.parse_args()

# NCCL where it can be used, Gloo elsewhere. It cannot be used between MIG instances of one card;
# af-launch knows the cards and says so in AF_BACKEND.
cuda = torch.cuda.is_available()
nccl = cuda and os.environ.get("AF_BACKEND", "nccl") == "nccl"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if nccl else "gloo", init_method="env://")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(1)  # the same events and the same first weights everywhere
cells = torch.randn(args.events + 5_000, 20)  # amplitudes; energy is the sum of their squares
energy = cells.square().view(-1, 2, 10).sum(dim=2)
label = (energy[:, 0] > energy[:, 1]).float()
train = TensorDataset(cells[:-5_000], label[:-5_000])
test_cells, test_label = cells[-5_000:][rank::world].to(device), label[-5_000:][rank::world].to(device)

# Each process reads its own share of the epoch; together they make steps of 500 events.
sampler = DistributedSampler(train, seed=1)
loader = DataLoader(train, batch_size=max(1, 500 // world), sampler=sampler)

network = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
model = DistributedDataParallel(network, device_ids=[device.index] if cuda else None)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_function = nn.BCEWithLogitsLoss()

first_epoch = 0
path = os.path.join(args.checkpoints, "state.pt")
if os.path.exists(path):
    state = torch.load(path, map_location=device)
    network.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first_epoch = state["epoch"] + 1
    if rank == 0:
        print(f"resumed after epoch {state['epoch']}")
dist.barrier()  # no process may still look for the checkpoint when the first one writes the next

for epoch in range(first_epoch, args.epochs):
    sampler.set_epoch(epoch)  # otherwise every epoch has the same order
    for batch, target in loader:
        loss = loss_function(model(batch.to(device)).squeeze(1), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with torch.no_grad():
        right = ((network(test_cells).squeeze(1) > 0) == (test_label > 0.5)).sum()
    sums = torch.stack([loss.detach() / world, right.float()])
    dist.all_reduce(sums)
    if rank == 0:
        print(f"epoch {epoch}  loss {sums[0].item():.4f}  test accuracy {sums[1].item() / 5_000:.4f}  world {world}")
        # Written beside its place and then renamed: whenever the job is stopped, state.pt is whole.
        os.makedirs(args.checkpoints, exist_ok=True)
        state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)

if rank == 0:
    print(f"checkpoint {path}")
dist.destroy_process_group()
