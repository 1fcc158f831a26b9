#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader over h5py against af's loader (bench/hdf5_read.cc, which also makes the file).

    hdf5_peer.py PROGRAM DIRECTORY

The peer at its best: an IterableDataset that reads whole chunks in a random order and shuffles the rows in memory, one
chunk a batch, with no worker or one, whichever is faster here; both sides may use two cores. And the usual way, a
Dataset of rows with shuffle=True. Blocks of 0.5 s alternate; a ratio is that of two neighbours.
"""
import json
import statistics
import subprocess
import sys
import time

import h5py
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

ROWS, CHUNK, SECONDS, PAIRS = 200000, 1024, 0.5, 10


class Chunks(IterableDataset):
    def __init__(self, path, name):
        self.path, self.name, self.data = path, name, None

    def __iter__(self):
        if self.data is None:  # in the worker: HDF5 files do not survive a fork
            self.data = h5py.File(self.path, "r")[self.name]
        for chunk in torch.randperm((ROWS + CHUNK - 1) // CHUNK).tolist():
            rows = torch.from_numpy(self.data[chunk * CHUNK : min(ROWS, (chunk + 1) * CHUNK)])
            yield rows[torch.randperm(len(rows))]


class Rows(Dataset):
    def __init__(self, path, name):
        self.path, self.name, self.data = path, name, None

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        if self.data is None:
            self.data = h5py.File(self.path, "r")[self.name]
        return torch.from_numpy(self.data[row])


class Peer:
    """Runs through a DataLoader, epoch after epoch."""

    def __init__(self, loader):
        self.loader, self.batches = loader, iter(loader)

    def rows_per_second(self, seconds):
        rows, start = 0, time.monotonic()
        while True:
            try:
                rows += len(next(self.batches))
            except StopIteration:
                self.batches = iter(self.loader)
            took = time.monotonic() - start
            if took > seconds:
                return rows / took


class Ours:
    def __init__(self, program, directory, name, threads):
        self.process = subprocess.Popen(
            [program, "serve", directory, name, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def rows_per_second(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def compare(label, peer_label, ours, peer, pairs):
    own, other = [], []
    for pair in range(pairs):
        first, second = (ours, peer) if pair % 2 == 0 else (peer, ours)
        got = {first: first.rows_per_second(SECONDS)}
        got[second] = second.rows_per_second(SECONDS)
        own.append(got[ours])
        other.append(got[peer])
    ratios = [a / b for a, b in zip(own, other)]
    spread = f"quartiles {quantile(ratios, 0.25):.2f} to {quantile(ratios, 0.75):.2f} over {pairs} pairs"
    line = {
        "name": label,
        "value": statistics.median(own),
        "unit": "rows/s",
        "peer": peer_label,
        "peer_value": statistics.median(other),
        "ratio": quantile(ratios, 0.5),
        "spread": f"{spread}, torch {torch.__version__}",
    }
    print(json.dumps(line), flush=True)


def main():
    program, directory = sys.argv[1:3]
    path = directory + "/rows.h5"
    torch.set_num_threads(1)
    for name in ("gzip", "contiguous"):
        shuffle = "window shuffle" if name == "gzip" else "full shuffle"
        chunkwise = {
            workers: Peer(
                DataLoader(Chunks(path, name), batch_size=None, num_workers=workers, persistent_workers=workers > 0)
            )
            for workers in (0, 1)
        }
        # Twice: the first run starts the worker.
        speed = {workers: [peer.rows_per_second(SECONDS) for _ in "12"][1] for workers, peer in chunkwise.items()}
        best = max(speed, key=speed.get)
        for threads in (1, 0):
            ours = Ours(program, directory, name, threads)
            label = f"HDF5 {name}, {shuffle}, {threads} loading thread" + ("s" if threads == 0 else "")
            compare(label, f"DataLoader, whole chunks, {best} worker{'s' * (best == 0)}", ours, chunkwise[best], PAIRS)
            if threads == 1:
                rows = Peer(DataLoader(Rows(path, name), batch_size=64, shuffle=True))
                compare(label, "DataLoader, random rows", ours, rows, 4)
            ours.close()


if __name__ == "__main__":
    main()
