#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an example of ours as it is, and watches it: for test_shared_gpus.py.

    watched.py EXAMPLE.py [ARGUMENTS]

Until there is a file `go` in the current directory, a step takes PACE seconds longer, and from step
TAIL of the training on TAIL_PACE: the test decides when it comes to its end. In a program on
af.train the rows of each step are written to rows-HOST-PID.txt, as "MARK EPOCH STEP GENERATION |
ROWS", with the mark "?" before the backward pass and "!" behind it; GENERATION is that of the world
in which this rank was then. Behind fit(), the loss over all rows is printed.
"""
import os
import runpy
import socket
import sys
import time

import torch
import torch.utils.data

PACE = float(os.environ.get("PACE", "0"))
TAIL, TAIL_PACE = int(os.environ.get("TAIL", "-1")), float(os.environ.get("TAIL_PACE", "0"))

plain_backward = torch.Tensor.backward
seen = []  # the datasets


class Watched(torch.utils.data.TensorDataset):
    """Remembers the rows that it was last asked for."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.asked = []
        seen.append(self)

    def __getitems__(self, rows):
        self.asked = list(map(int, rows))
        return [self[row] for row in rows]


def hurry():
    return os.path.exists("go")


class Watcher:
    def __init__(self):
        from af.train._session import session

        self.session = session()
        name = f"rows-{socket.gethostname()}-{os.getpid()}.txt"
        self.file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, mark, epoch, step, rows):
        generation = self.session.world.generation
        os.write(self.file, f"{mark} {epoch} {step} {generation} | {' '.join(map(str, rows))}\n".encode())

    def backward(self, loss):
        current = self.session
        if current.catching_up:
            return plain_backward(loss)
        epoch, step = current.loaders[0]().dealing.epoch, current.steps + 1
        rows = seen[-1].asked if current.weight[0] > 0 else []
        self.write("?", epoch, step, rows)
        if not hurry():
            time.sleep(TAIL_PACE if 0 <= TAIL <= step else PACE)
        plain_backward(loss)
        self.write("!", epoch, step, rows)


def watch_steps():
    watcher = None

    def backward(loss):
        nonlocal watcher
        watcher = watcher or Watcher()
        watcher.backward(loss)

    return backward


def slow_backward(loss):
    if not hurry():
        time.sleep(PACE)
    plain_backward(loss)


def final_loss(path):
    x, y = seen[-1].tensors
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    net.load_state_dict(torch.load(f"{path}/state.pt")["model"])
    with torch.no_grad():
        return torch.nn.BCEWithLogitsLoss()(net(x), y).item()


sys.argv = sys.argv[1:]
torch.manual_seed(0)
torch.set_num_threads(1)
if "af.train" in open(sys.argv[0]).read():
    import af.train.torch  # before TensorDataset is replaced: it has a shorter way for that

    torch.utils.data.TensorDataset = Watched
    torch.Tensor.backward = watch_steps()
else:
    torch.Tensor.backward = slow_backward
result = runpy.run_path(sys.argv[0], run_name="__main__").get("result")
if result is not None:
    print(f"FINAL {final_loss(result.checkpoint.path):.9f}", flush=True)
