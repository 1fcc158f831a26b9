#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training on as many GPUs as are free, that goes on when some are taken away.

It is the data-parallel script of the guide for Ray Train with other imports. Environment:
EPOCHS (5), STORAGE (where the checkpoints go; by default into the directory of the run).
"""

import os
import tempfile

import af.train
import af.train.torch
import torch
from af.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from af.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = int(os.environ.get("EPOCHS", "5"))


# 1. The training goes into a function.
def train_func():
    X = torch.randn(100_000, 20)
    y = (X.sum(dim=1, keepdim=True) > 0).float()
    loader = DataLoader(TensorDataset(X, y), batch_size=512, shuffle=True)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))

    # 2. af puts the model and the batches on the GPU, in place of .to("cuda"), and gives each GPU
    #    its share of the data.
    model = af.train.torch.prepare_model(net)
    loader = af.train.torch.prepare_data_loader(loader)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()

    # 3. The training starts from its last checkpoint, if it has one.
    first_epoch = 0
    checkpoint = af.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as path:
            state = torch.load(f"{path}/state.pt")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, EPOCHS):
        for X_batch, y_batch in loader:
            loss = loss_fn(model(X_batch), y_batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        # 4. Every GPU reports the epoch, in place of print, and the first one saves a checkpoint
        #    with it.
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if af.train.get_context().get_world_rank() == 0:
                state = {
                    "model": net.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, f"{tmp}/state.pt")
                checkpoint = Checkpoint.from_directory(tmp)
            af.train.report({"loss": loss.item()}, checkpoint=checkpoint)


# 5. af runs the function on the GPUs.
trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(
        # From one GPU to as many as you ask for when you submit.
        num_workers=(1, int(os.environ["AF_MAX_WORKERS"])),
        use_gpu=torch.cuda.is_available(),
    ),
    run_config=RunConfig(
        # Where the checkpoints go: a directory of yours on storage that jobs see.
        storage_path=os.environ.get("STORAGE"),
        # Lets the training go on when the program itself fails.
        failure_config=FailureConfig(max_failures=10),
    ),
)
result = trainer.fit()
print(result.checkpoint.path)
