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
    """Seconds until RANKS lines of the program have come; the command must end well."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen, took = 0, None
    for line in process.stdout:
        seen += "first line" in line
        if seen == RANKS and took is None:
            took = time.monotonic() - start
    errors = process.stderr.read()
    if process.wait() != 0 or took is None:
        sys.exit(f"bench_startup: {' '.join(command)} ended with {process.returncode}, {seen} lines: {errors}")
    return took


def measure(name, launch, step=()):
    launch = [*step, *launch]
    time_to_first_lines([*SRUN, *PROGRAM]), time_to_first_lines([*SRUN, *launch, *PROGRAM])  # warm the page cache
    bare, ours = [], []
    for _ in range(PAIRS):
        bare.append(time_to_first_lines([*SRUN, *PROGRAM]))
        ours.append(time_to_first_lines([*SRUN, *launch, *PROGRAM]))
    differences = [b - a for a, b in zip(bare, ours)]
    low, _, high = statistics.quantiles(differences, n=4)
    print(json.dumps({
        "name": name, "value": round(statistics.median(differences), 4), "unit": "s more",
        "peer": "bare srun", "peer_value": round(statistics.median(bare), 4),
        "ratio": round(statistics.median(ours) / statistics.median(bare), 3),
        "spread": f"quartiles {low:.3f} to {high:.3f} s over {PAIRS} pairs"}), flush=True)


measure("start-up, 4 ranks on 2 nodes, default bootstrap", [LAUNCH])
measure("start-up, 4 ranks on 2 nodes, MPI bootstrap", [LAUNCH, "--bootstrap=mpi"], ["--mpi=pmix"])
measure("start-up, 4 ranks on 2 nodes, TCP bootstrap", [LAUNCH, "--bootstrap=tcp"])
