# SPDX-License-Identifier: Apache-2.0
# The users' data-parallel listing for Ray Train, with its import lines changed, use_gpu=False, and
# what the test needs: fixed seeds, the storage path, and lines marked "test".
import os
import tempfile

import af.train
import af.train.torch
import torch
from af.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from af.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)  # test
torch.set_num_threads(1)  # test


def train_func():
    X = torch.randn(100_000, 20)
    y = (X.sum(dim=1, keepdim=True) > 0).float()
    loader = DataLoader(TensorDataset(X, y), batch_size=512, shuffle=True)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    model = af.train.torch.prepare_model(net)
    loader = af.train.torch.prepare_data_loader(loader)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()

    first_epoch = 0
    checkpoint = af.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as path:
            state = torch.load(f"{path}/state.pt")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, 5):
        for X_batch, y_batch in loader:
            hook()  # test
            loss = loss_fn(model(X_batch), y_batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

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
    print(f"FINAL {loss_fn(net(X), y).item():.9f} 0 0 0", flush=True)  # test


def hook():
    import signal
    import time

    from af.train._session import session

    step, worker = session().steps + 1, os.environ["AF_WORKER"]
    if os.environ.get("AF_KILL") == f"{worker}:{step}":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("HOLD") == f"{worker}:{step}":
        open("held", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)


trainer = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(
        # From one GPU to as many as you ask for when you submit.
        num_workers=(1, int(os.environ["AF_MAX_WORKERS"])),
        use_gpu=False,
    ),
    run_config=RunConfig(
        # Where the checkpoints go: a directory of yours on /work.
        storage_path="ray_results",
        # Lets the training go on when it loses a GPU.
        failure_config=FailureConfig(max_failures=10),
    ),
)
result = trainer.fit()
print(result.checkpoint.path)
