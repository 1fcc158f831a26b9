# SPDX-License-Identifier: Apache-2.0
"""state.pt between C++ and a current PyTorch, whose torch.load is the safe one by default."""

import os
import pathlib
import re
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "build/tests/unit/train_checkpoint"


def test_the_round_trips_of_the_unit_tests_work_with_it():
    done = subprocess.run(
        [PROGRAM, "--gtest_filter=StateFileTest.*Python*:StateStream.*Python*:StateStream.TheSame*"],
        env={**os.environ, "AF_TEST_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) tests? from .* ran", done.stdout)[1]) >= 5, done.stdout
