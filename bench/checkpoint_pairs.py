#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a training stands still for its checkpoints: af's, written in the background and in shares
by the ranks, against torch.save() of the same state by this process, which is what a program does
without af (no fsync; af's is on the disk).

The same state on both sides: 25 M parameters in 100 tensors, and Adam's two moments of them, 300 MB.
Both compute with one thread, pinned. In turn: a pause of one rank, of two ranks (the longer one), one
torch.save(). Then what 20 checkpoints add to the time of a training, in two blocks of ten.
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

import torch

PROGRAM = pathlib.Path(__file__).resolve().parents[1] / "build/bench/checkpoint_pause"
PAIRS = 6
STEPS = 3  # between two checkpoints


class Ranks:
    def __init__(self, count, directory):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._processes = [
            subprocess.Popen(
                [PROGRAM, str(directory / f"ranks-{count}")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(count),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(count)
        ]
        self._answers()

    def _answers(self):
        lines = [process.stdout.readline().strip() for process in self._processes]
        if not all(lines):
            raise RuntimeError(f"{PROGRAM} has ended")
        return lines

    def ask(self, command):
        for process in self._processes:
            process.stdin.write(command + "\n")
            process.stdin.flush()
        return max(float(line) for line in self._answers())

    def close(self):
        for process in self._processes:
            process.stdin.close()
            process.wait()


def make_state():
    parameters = {f"weight{i:03}": torch.rand(250_000) for i in range(100)}
    moments = {
        name: {"step": 1, "exp_avg": torch.rand(250_000), "exp_avg_sq": torch.rand(250_000)}
        for name in parameters
    }
    return {"step": 1, "model": parameters, "optimizer": moments}


def seconds_of(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def show(name, ours, theirs, unit="ms"):
    ratios = sorted(their / max(our, 1e-9) for our, their in zip(ours, theirs))
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 2 else (ratios[0], 0, ratios[-1])
    line = {
        "name": name,
        "value": round(1e3 * statistics.median(ours), 3),
        "unit": unit,
        "peer": f"torch.save of {torch.__version__}",
        "peer_value": round(1e3 * statistics.median(theirs), 3),
        "ratio": round(statistics.median(ratios), 2),
        "spread": f"{quartiles[0]:.2f} to {quartiles[2]:.2f} over {len(ratios)} pairs",
    }
    print(json.dumps(line), flush=True)


def main(directory):
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    state, file = make_state(), directory / "state.pt"
    ranks = {}
    os.sched_setaffinity(0, set(range(os.cpu_count())))  # not what the ranks inherit
    for count in (1, 2):
        ranks[count] = Ranks(count, directory)
    os.sched_setaffinity(0, {0})

    pauses = {1: [], 2: []}
    saves = []
    for pair in range(PAIRS + 1):
        times = {count: ranks[count].ask("pause") for count in ranks}
        save = seconds_of(lambda: torch.save(state, file))
        if pair == 0:  # page cache, files
            continue
        saves.append(save)
        for count in ranks:
            pauses[count].append(times[count])
    for count, name in ((1, "1 rank"), (2, "2 ranks")):
        show(f"pause of a checkpoint, 25 M parameters and Adam, {name}", pauses[count], saves)
    ranks.pop(1).close()  # memory

    added, peers = [], []
    for _ in range(2):
        plain = ranks[2].ask(f"train 10 {STEPS}")
        added.append(ranks[2].ask(f"save 10 {STEPS}") - plain)
        peers.append(sum(seconds_of(lambda: torch.save(state, file)) for _ in range(10)))
    added, peers = [sum(added)], [sum(peers)]
    show("added time of 20 checkpoints, 25 M parameters and Adam, 2 ranks", added, peers)
    ranks.pop(2).close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
