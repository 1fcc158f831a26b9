# SPDX-License-Identifier: Apache-2.0
"""A training that writes down which rows it has trained on, for test_elastic.py.

A line of rows-W.txt (W: number of the worker) is "epoch step world_size | rows", written before the
backward pass with a "?" in front and behind it with a "!". AF_KILL="W:STEP:WHERE" ends a worker by
SIGKILL at a step: before its backward pass, in the middle of it (the local gradients are there), or
behind the optimizer. HOLD="W:STEP" makes a worker wait before that step until there is a file "go".
AF_FAIL="W:STEP" makes the reduction of that step fail on a worker where it has
completed on the others.
"""

import os
import signal
import sys
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import af.train
import af.train.torch
from af.train import Checkpoint, RunConfig, ScalingConfig
from af.train._session import session
from af.train.torch import TorchTrainer

WORKER = os.environ.get("AF_WORKER", "0")
ROWS = int(os.environ.get("ROWS", "1000"))
BATCH = int(os.environ.get("BATCH", "64"))
EPOCHS = int(os.environ.get("EPOCHS", "4"))
LOADERS = int(os.environ.get("LOADER_WORKERS", "0"))
CHECKPOINTS = os.environ.get("CHECKPOINTS", "1") == "1"


def fail_at(model, step):
    if f"{WORKER}:{step}" not in os.environ.get("AF_FAIL", "").split():
        return
    bucket = model.buckets[-1]
    finish = bucket.finish

    def fail(factor):
        bucket.finish = finish
        raise af.train.CommunicatorError("for the test", 3)

    bucket.finish = fail


def kill_at(step, where):
    for entry in os.environ.get("AF_KILL", "").split():
        if entry == f"{WORKER}:{step}:{where}":
            os.kill(os.getpid(), signal.SIGKILL)


def train_func():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(ROWS, 20)
    y = (x.sum(dim=1, keepdim=True) > 0).float()
    index = torch.arange(ROWS)
    loader = DataLoader(
        TensorDataset(x, y, index), batch_size=BATCH, shuffle=True, num_workers=LOADERS
    )
    torch.manual_seed(2 + (int(WORKER) if os.environ.get("UNEQUAL_WEIGHTS") else 0))
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
    model = af.train.torch.prepare_model(net)
    loader = af.train.torch.prepare_data_loader(loader)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.97)
    loss_fn = nn.BCEWithLogitsLoss()
    first = 0
    checkpoint = af.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as path:
            state = torch.load(f"{path}/state.pt")
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first = state["epoch"] + 1
    out = os.open(f"rows-{WORKER}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    current = session()

    def write(mark, epoch, step, rows):
        text = f"{mark} {epoch} {step} {current.world.size} | {' '.join(map(str, rows))}\n"
        os.write(out, text.encode())

    for epoch in range(first, EPOCHS):
        for xb, yb, rows in loader:
            real = current.weight[0] > 0 and not current.catching_up
            step = current.steps + 1
            if real:
                write("?", epoch, step, rows.tolist())
            while f"{WORKER}:{step}" == os.environ.get("HOLD") and not os.path.exists("go"):
                time.sleep(0.01)
            kill_at(step, "before")
            loss = loss_fn(model(xb), yb)
            optimizer.zero_grad()
            if any(e.startswith(f"{WORKER}:{step}:middle") for e in os.environ.get("AF_KILL", "").split()):
                model.buckets and setattr(model, "_reduce", lambda gathered: kill_at(step, "middle"))
            fail_at(model, step)
            loss.backward()
            if real:
                write("!", epoch, step, rows.tolist())
            optimizer.step()
            schedule.step()
            kill_at(step, "after")
        with tempfile.TemporaryDirectory() as tmp:
            checkpoint = None
            if CHECKPOINTS and af.train.get_context().get_world_rank() == 0:
                state = {
                    "model": net.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "epoch": epoch,
                }
                torch.save(state, f"{tmp}/state.pt")
                checkpoint = Checkpoint.from_directory(tmp)
            af.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)
    with torch.no_grad():
        final = loss_fn(net(x), y).item()
    total = sum(float(p.double().abs().sum()) for p in net.parameters())
    rate = optimizer.param_groups[0]["lr"]
    print(f"FINAL {final:.9f} {total:.9f} {rate:.12f} {current.steps}", flush=True)


result = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=(1, 4)),
    run_config=RunConfig(storage_path=os.path.join(os.getcwd(), "storage")),
).fit()
print("BEHIND FIT", result.metrics["loss"], result.checkpoint and result.checkpoint.path)
sys.stdout.flush()
