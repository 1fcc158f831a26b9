#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model on two GPUs in plain PyTorch: each part of it on a GPU of its own.

The same process drives both. Where there is no GPU, both parts are on the CPU. In a job with two GPUs a worker
(--af-gpus-per-worker=2):

    af-launch python two_gpus.py

With several workers each trains a model of its own; for one model on more than two GPUs see fsdp.py.
"""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = int(os.environ.get("EPOCHS", "5"))
torch.manual_seed(1)

X = torch.randn(100_000, 20)
y = (X.sum(dim=1, keepdim=True) > 0).float()
loader = DataLoader(TensorDataset(X, y), batch_size=512, shuffle=True)

# 1. Each part of the model goes on a GPU of its own.
devices = ["cuda:0", "cuda:1"] if torch.cuda.is_available() else ["cpu", "cpu"]
first = nn.Sequential(nn.Linear(20, 4096), nn.ReLU()).to(devices[0])
second = nn.Linear(4096, 1).to(devices[1])
optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-3)
loss_fn = nn.BCEWithLogitsLoss()

for epoch in range(EPOCHS):
    for X_batch, y_batch in loader:
        # 2. The data follows the model from one GPU to the other.
        hidden = first(X_batch.to(devices[0]))
        loss = loss_fn(second(hidden.to(devices[1])), y_batch.to(devices[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
