# SPDX-License-Identifier: Apache-2.0
"""The packages of requirements.txt are there as it says, and PyTorch works without what was left out."""
import importlib.metadata
import pathlib

import torch
import torch.distributed.fsdp  # noqa: F401

REQUIREMENTS = pathlib.Path(__file__).with_name("requirements.txt")


def test_versions_are_the_pinned_ones():
    pinned = dict(line.split("==") for line in REQUIREMENTS.read_text().split() if "==" in line)
    assert len(pinned) > 50
    assert {name: importlib.metadata.version(name) for name in pinned} == pinned


def test_torch_trains_on_the_cpu():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rows = torch.rand(32, 3)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = ((model(rows) - rows.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 1000
