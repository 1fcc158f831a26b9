# SPDX-License-Identifier: Apache-2.0
"""The listings of the users' guide, which is written for Ray, and how tests run them.

fsdp.py and two_gpus.py are the guide's, letter for letter. `on_the_cpu` changes their import lines, as
docs/guide/shared-gpus.md tells, and what a place without GPUs and without the users' /work asks for; nothing
else. What a test has to decide (random numbers, a death) comes from outside: steer/sitecustomize.py.
"""
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/listings"
EPOCHS, STEPS = 5, 196  # of 100,000 rows, 512 a step: 195 and a tail

IMPORTS = [
    (r"^import ray\.train$", "import af as ray"),
    (r"^import ray\.train\.torch$", "import af.train.torch"),
    (r"^from ray\.train(\.torch)? import", r"from af.train\1 import"),
]
DEVICES_AND_STORAGE = [
    (r"\buse_gpu=True\b", "use_gpu=False"),
    (r'"cuda:[01]"', '"cpu"'),
    (r'storage_path="/work/users/<username>/ray_results"', 'storage_path="ray_results"'),
]


def on_the_cpu(name):
    """The text of a listing with its import lines changed, and the CPU for its GPUs."""
    text = (FOLDER / name).read_text()
    for pattern, new in IMPORTS + DEVICES_AND_STORAGE:
        text = re.sub(pattern, new, text, flags=re.MULTILINE)
    return text


def steered(**more):
    """The environment of a run on this machine: nothing of a job that the tests run in."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "AF_", "PMI"))}
    return {**clean, "PYTHONPATH": str(FOLDER / "steer"), "OMP_NUM_THREADS": "1", **more}


def launch(directory, workers, python, program, **more):
    """`af-launch --workers N python program`, outside Slurm: (stdout, stderr)."""
    done = subprocess.run(
        [ROOT / "build/bin/af-launch", "--workers", str(workers), python, program], cwd=directory,
        env=steered(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def events(directory, name):
    """Those of the only run in a directory."""
    journal, = pathlib.Path(directory).glob("af-runs/*/events.jsonl")
    found = [json.loads(line) for line in journal.read_text().splitlines()]
    return [event for event in found if event["event"] == name]
