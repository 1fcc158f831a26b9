# SPDX-License-Identifier: Apache-2.0
"""Changes its world TIMES times and prints what the process holds before and after that."""

import os

import torch
from torch import nn

import af.train
import af.train.torch
from af.train._session import session
from af.train.torch import TorchTrainer

TIMES = int(os.environ["TIMES"])


def held():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    memory = int(fields["VmRSS"].split()[0])
    mapped = int(fields["VmSize"].split()[0])
    return len(os.listdir("/proc/self/fd")), int(fields["Threads"]), memory, mapped


def train_func():
    torch.set_num_threads(1)
    model = af.train.torch.prepare_model(nn.Linear(1000, 500))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    current = session()

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 1000)).sum().backward()
        optimizer.step()

    def change():
        # As when a reduction has failed: the world is given up, and what is in progress repeated.
        error = af.train.CommunicatorError("for the test", 3)
        current.enter(state=True, error=error)

    for _ in range(20):
        step()
        change()
    before = held()
    for _ in range(TIMES):
        step()
        change()
    step()
    print("HELD", *before, *held(), flush=True)


TorchTrainer(train_func).fit()
