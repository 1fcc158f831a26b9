# SPDX-License-Identifier: Apache-2.0
"""Reports: a checkpoint with a part of each rank; one that cannot be saved; one of rank 1 alone."""

import os
import pathlib
import tempfile

import af.train
import af.train.torch
from af.train import Checkpoint, RunConfig
from af.train.torch import TorchTrainer


def train_func():
    rank = af.train.get_context().get_world_rank()
    for n in range(3):
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, f"{rank}.pt").write_text(str(n))
            whole = Checkpoint.from_directory(directory)
            if n == 1 and rank == 0:
                whole = Checkpoint.from_directory("/nowhere")
            has_one = n == 0 or (n == 1 and rank == 0) or (n == 2 and rank == 1)
            af.train.report({"n": n}, checkpoint=whole if has_one else None)
        if n == 1:
            assert af.train.get_checkpoint().path.endswith("step-000000000001")
    with af.train.get_checkpoint().as_directory() as path:
        print("LAST", *sorted(p[0] for p in os.listdir(path) if p.endswith(".pt")), flush=True)


TorchTrainer(train_func, run_config=RunConfig(storage_path="storage")).fit()
