# SPDX-License-Identifier: Apache-2.0
"""examples/python/fsdp.py under af-launch, on the CPU: plain PyTorch shards there from 2.x on."""
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(directory, workers, epochs):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "AF_", "PMI"))}
    clean.update(EPOCHS=str(epochs), OMP_NUM_THREADS="1", AF_CHECKPOINT_DIR=str(directory))
    done = subprocess.run([ROOT / "build/bin/af-launch", "--workers", str(workers), sys.executable, ROOT / "examples/python/fsdp.py"],
                          cwd=directory, env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    return [float(loss) for loss in re.findall(r"(?m)^\[0\] epoch \d+: loss ([\d.]+), world " + str(workers), done.stdout)]


def test_sharded_training_is_that_of_one_process_and_goes_on_with_another_number(tmp_path):
    for name in ("one", "more"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "one", 1, 2)
    assert len(whole) == 2 and whole[1] < whole[0] < 0.5
    assert run(tmp_path / "more", 2, 1) + run(tmp_path / "more", 4, 2) == pytest.approx(whole, abs=2e-3)
    states = [torch.load(tmp_path / name / "state.pt") for name in ("one", "more")]
    for key, weight in states[0]["model"].items():
        torch.testing.assert_close(states[1]["model"][key], weight, rtol=0, atol=5e-3)
