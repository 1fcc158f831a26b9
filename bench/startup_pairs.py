#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Times srun to the first line of a program on all of 4 ranks over 2 nodes, bare and under af-launch,
in interleaved pairs. Runs inside the sandbox (bench_startup starts it); prints results as JSON lines."""
import json
import statistics
import subprocess
import sys
import time

RANKS = 4
PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
SRUN = ["srun", "-N2", "-n4", "--partition=kept"]
PROGRAM = ["sh", "-c", "echo first line"]
LAUNCH = "/opt/af/build/bin/af-launch"


def time_to_first_lines(command):
    """Seconds until RANKS lines of the program have come; None, and the reason said, if it failed."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen, took = 0, None
    for line in process.stdout:
        seen += "first line" in line
        if seen == RANKS and took is None:
            took = time.monotonic() - start
    errors = process.stderr.read()
    if process.wait() == 0 and took is not None:
        return took
    print(f"bench_startup: {' '.join(command)} ended with {process.returncode}, {seen} lines: {errors}",
          file=sys.stderr)
    return None


def measure(name, launch, options=()):
    bare, ours, failed = [], [], 0
    time_to_first_lines([*SRUN, *options, *launch, *PROGRAM])  # warm the page cache
    while len(ours) < PAIRS:
        pair = [time_to_first_lines([*SRUN, *PROGRAM]),
                time_to_first_lines([*SRUN, *options, *launch, *PROGRAM])]
        if None in pair:
            failed += 1
            if failed > PAIRS // 4:
                sys.exit(f"bench_startup: {name}: {failed} starts failed")
            continue
        bare.append(pair[0])
        ours.append(pair[1])
    differences = [b - a for a, b in zip(bare, ours)]
    low, _, high = statistics.quantiles(differences, n=4)
    print(json.dumps({
        "name": name, "value": round(statistics.median(differences), 4), "unit": "s more",
        "peer": "bare srun", "peer_value": round(statistics.median(bare), 4),
        "ratio": round(statistics.median(ours) / statistics.median(bare), 3),
        "spread": f"quartiles {low:.3f} to {high:.3f} s over {PAIRS} pairs, {failed} starts failed"}), flush=True)


measure("start-up, 4 ranks on 2 nodes, default bootstrap", [LAUNCH])
measure("start-up, 4 ranks on 2 nodes, MPI bootstrap", [LAUNCH, "--bootstrap=mpi"], ["--mpi=pmix"])
measure("start-up, 4 ranks on 2 nodes, TCP bootstrap", [LAUNCH, "--bootstrap=tcp"])
