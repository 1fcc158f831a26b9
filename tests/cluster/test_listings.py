# SPDX-License-Identifier: Apache-2.0
"""The users' listings for a model larger than a GPU, as jobs: sbatch, af's plugin, af-launch.

Their import lines are changed, and the CPU is in the place of the GPUs that the job gets, which are not
real; nothing else (tests/listings/listings.py).
"""
import json
import re
import sys

import pytest

from launch_helpers import LAUNCH, PYTHON
from sandbox import REPO

sys.path.insert(0, str(REPO / "tests/listings"))

from listings import EPOCHS, STEPS, on_the_cpu  # noqa: E402

VENV = "build/venv/bin/python"
STEER = {"PYTHONPATH": "/opt/af/tests/listings/steer", "OMP_NUM_THREADS": "1"}


def train(cluster, listing, python, *options):
    """(what the job printed, its journal)"""
    cluster.write("train.py", on_the_cpu(listing))
    # PyTorch 2.x makes a directory of this person's in /tmp, and the nodes are those of other tests too.
    script = f"#!/bin/bash\nexport TORCHINDUCTOR_CACHE_DIR=$PWD/inductor\n{LAUNCH} {python} train.py\n"
    job = cluster.sbatch(script, *options, "--time=10", env=STEER)
    ended = cluster.wait_ended(job, timeout=180)
    output = cluster.output(job, ended["StdOut"])
    assert ended["JobState"] == "COMPLETED", output
    journal = cluster.read(f"af-runs/{job}/events.jsonl")
    return output, [json.loads(line) for line in journal.splitlines()]


def workers(journal):
    world, = [event for event in journal if event["event"] == "world_formed"]
    return world["workers"]


def test_a_model_on_two_gpus(cluster):
    output, journal = train(cluster, "two_gpus.py", PYTHON, "--af-n-workers=1", "--af-gpus-per-worker=2")
    losses = [float(loss) for loss in re.findall(r"(?m)^\[0\] epoch \d: loss (\S+)$", output)]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] and losses[-1] < 0.1  # 0.69 before the first step
    rank, = workers(journal)
    assert len({gpu["uuid"] for gpu in rank["gpus"]}) == 2, rank


@pytest.mark.skipif(not (REPO / VENV).exists(), reason=f"there is no {VENV}: FSDP needs a current PyTorch on the CPU")
def test_fsdp(cluster):
    output, journal = train(cluster, "fsdp.py", f"/opt/af/{VENV}", "--af-n-workers=2")
    assert len(workers(journal)) == 2
    reports = [event for event in journal if event["event"] == "report"]
    assert [(report["epoch"], report["step"]) for report in reports] == [
        (e + 1, STEPS * (e + 1)) for e in range(EPOCHS)]
    losses = [report["metrics"]["loss"] for report in reports]
    assert losses[-1] < losses[0] and losses[-1] < 0.1  # 0.69 before the first step
    held = [int(number) for number in re.findall(r"(?m)^\[\d\] holds (\d+) parameters$", output)]
    assert len(held) == 2 and max(held) < 0.6 * (20 * 64 + 64 + 64 + 1)
    paths = re.findall(r"(?m)^\[0\] (/.*/ray_results/.*)$", output)
    assert len(paths) == 1
    assert cluster.host_path(f"{paths[0]}/state.pt").exists()
