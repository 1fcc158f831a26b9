# SPDX-License-Identifier: Apache-2.0
"""Compares the steps of two trainings whose ranks live side by side on the same cores.

Both trainings are started and stay. In turn one of them takes steps for at most a second while the
other one waits for its next order, in alternating order (A B, B A, ...), so that whatever else
happens on the machine hits both; the figure is the median of the ratios of neighbouring blocks.
Blocks in which other programs took more than 5 % of the CPU do not count.

A rank is a program that finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment and

  - writes one line when it is ready: a JSON object with what the row should name (may be empty),
  - then for each line "N" that it reads takes N steps, and writes the seconds that they took,
  - and ends when its input does.

Rank R runs on core R of those that this program may use, with one thread for torch and BLAS.
"""

import json
import os
import socket
import subprocess
import sys
import time

_BLOCK_SECONDS = 0.3
_PAIRS = 15
_STRANGERS = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


def _core_type():
    """OpenBLAS of 2022 does not know the CPUs of today and may take kernels of 2008 for them. On
    AMD's with AVX-512 those for AVX2 are the faster ones (dX of 32 x 4096 x 4096: 15 ms, not 22)."""
    with open("/proc/cpuinfo") as file:
        text = file.read()
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    if "avx512vl" in flags and "AuthenticAMD" not in text:
        return "SkylakeX"
    return "Haswell" if "avx2" in flags else None


def blas_environment():
    """For both sides of a comparison, unless the person has chosen."""
    kind = _core_type()
    return {"OPENBLAS_CORETYPE": kind} if kind and not os.environ.get("OPENBLAS_CORETYPE") else {}


def _free_port():
    """Of which the next one is free too: af serves there."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


class Training:
    """`ranks` processes of `command`."""

    def __init__(self, name, command, ranks=2, environment=None):
        self.name = name
        cores = sorted(os.sched_getaffinity(0))
        port = _free_port()
        self._processes = []
        for rank in range(ranks):
            env = {
                **os.environ,
                **(environment or {}),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
            }
            core = cores[rank % len(cores)]
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    preexec_fn=lambda core=core: os.sched_setaffinity(0, {core}),
                )
            )
        self.about = [json.loads(self._line(process)) for process in self._processes][0]
        self.steps = 1
        self._calibrate()

    def _line(self, process):
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: a rank has ended with code {process.wait()}")
        return line

    def take(self, steps):
        """Seconds, of the slowest rank."""
        for process in self._processes:
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        return max(float(self._line(process)) for process in self._processes)

    def _calibrate(self):
        for _ in range(3):  # what is made in the first steps
            self.take(2)
        took = self.take(self.steps)
        while took < _BLOCK_SECONDS / 4:
            self.steps *= 2
            took = self.take(self.steps)
        self.steps = max(1, int(self.steps * _BLOCK_SECONDS / took))

    def cpu(self):
        """Seconds that its ranks have used."""
        ticks = 0
        for process in self._processes:
            with open(f"/proc/{process.pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / _TICKS

    def block(self):
        """(seconds of a step, share of the CPU that others took)."""
        before, own, start = _machine_cpu(), self.cpu(), time.monotonic()
        took = self.take(self.steps)
        capacity = (time.monotonic() - start) * os.cpu_count()
        others = (_machine_cpu() - before) - (self.cpu() - own)
        return took / self.steps, max(0.0, others) / capacity

    def close(self):
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _machine_cpu():
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICKS


def _quantile(values, q):
    values = sorted(values)
    at = q * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def compare(name, ours, theirs, most_seconds=20.0):
    """The row of a comparison: how many times as long a step of `theirs` takes."""
    pairs = []
    start = time.monotonic()
    while len([p for p in pairs if p[2]]) < _PAIRS and time.monotonic() - start < most_seconds:
        order = (ours, theirs) if len(pairs) % 2 == 0 else (theirs, ours)
        block = {id(side): side.block() for side in order}
        mine, other = block[id(ours)], block[id(theirs)]
        pairs.append((mine[0], other[0], max(mine[1], other[1]) <= _STRANGERS))
    quiet = [p for p in pairs if p[2]]
    verdict = len(quiet) * 2 > len(pairs)
    kept = quiet if verdict else pairs
    ratios = [other / mine for mine, other, _ in kept]
    spread = (
        f"quartiles {_quantile(ratios, 0.25):.2f} to {_quantile(ratios, 0.75):.2f} over "
        f"{len(kept)} of {len(pairs)} pairs of blocks"
    )
    if not verdict:
        spread = f"no verdict, other programs were busy in most blocks; {spread}"
    about = theirs.about.get("about")
    return {
        "name": name,
        "value": 1e3 * _quantile([mine for mine, _, _ in kept], 0.5),
        "unit": "ms",
        "peer": theirs.name + (f" ({about})" if about else ""),
        "peer_value": 1e3 * _quantile([other for _, other, _ in kept], 0.5),
        "ratio": _quantile(ratios, 0.5),
        "spread": spread,
    }


def serve(step, about=""):
    """What a rank in Python does: `step` takes one step."""
    print(json.dumps({"about": about}), flush=True)
    for line in sys.stdin:
        steps = int(line)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        print(time.perf_counter() - start, flush=True)
