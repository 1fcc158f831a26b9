#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A training that knows nothing of af: epochs, and a checkpoint of its own in AF_CHECKPOINT_DIR.

    plain_epochs.py SECONDS-PER-EPOCH

Rank 0 writes the checkpoint behind each epoch; the others wait for it, as in a barrier. All end
when a file `stop` is in the current directory. No handlers: TERM ends it where it is.
"""
import json
import os
import pathlib
import sys
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
checkpoint = pathlib.Path(os.environ["AF_CHECKPOINT_DIR"]) / "epochs.json"


def load():
    return json.loads(checkpoint.read_text()) if checkpoint.exists() else {"epochs": [], "last": False}


def train(epoch):
    print(f"begin epoch={epoch} rank={rank}/{size}", flush=True)
    time.sleep(float(sys.argv[1]))
    if rank == 0:
        state = load()
        state["epochs"].append({"epoch": epoch, "size": size})
        state["last"] = os.path.exists("stop")
        new = checkpoint.with_suffix(".tmp")
        new.write_text(json.dumps(state))
        new.rename(checkpoint)
    while len(load()["epochs"]) <= epoch:
        time.sleep(0.02)
    print(f"end epoch={epoch} rank={rank}/{size}", flush=True)


while not load()["last"]:
    train(len(load()["epochs"]))
