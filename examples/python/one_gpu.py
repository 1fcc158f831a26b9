#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain PyTorch training on one GPU (or the CPU): nothing in it knows of af or Slurm.

Each event has two clusters of ten calorimeter cells; the network learns which of the two holds more
energy. It prints a line after each epoch and saves the model at the end.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--events", type=int, default=50_000)
parser.add_argument("--out", default="model.pt", help="where the trained model goes")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)

cells = torch.randn(args.events + 5_000, 20)  # amplitudes; energy is the sum of their squares
energy = cells.square().view(-1, 2, 10).sum(dim=2)
label = (energy[:, 0] > energy[:, 1]).float()
train = TensorDataset(cells[:-5_000], label[:-5_000])
test_cells, test_label = cells[-5_000:].to(device), label[-5_000:].to(device)

model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
loss_function = nn.BCEWithLogitsLoss()

for epoch in range(args.epochs):
    for batch, target in DataLoader(train, batch_size=500, shuffle=True):
        loss = loss_function(model(batch.to(device)).squeeze(1), target.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(test_cells).squeeze(1) > 0) == (test_label > 0.5)
    print(f"epoch {epoch}  loss {loss.item():.4f}  test accuracy {right.float().mean().item():.4f}")

torch.save(model.state_dict(), args.out)
print(f"model {args.out}")
