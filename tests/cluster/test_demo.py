# SPDX-License-Identifier: Apache-2.0
"""scripts/demo, under a name of its own: the whole way from sbatch to a trained model."""
import json
import os
import re
import subprocess

import pytest

from sandbox import REPO, Sandbox


@pytest.fixture
def demo():
    sandbox = Sandbox(f"t{os.getpid()}-demo")
    yield sandbox
    sandbox.remove()


def run_demo(sandbox, **environment):
    return subprocess.run([REPO / "scripts/demo"], env={**os.environ, "AF_DEMO_NAME": sandbox.name, **environment},
                          capture_output=True, text=True, timeout=400, stdin=subprocess.DEVNULL)


def test_demo_trains_a_model_and_takes_its_cluster_down(demo):
    done = run_demo(demo)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy, = re.findall(r"^test accuracy ([\d.]+) with 4, 3 and again 4 GPUs", done.stdout, re.MULTILINE)
    assert float(accuracy) >= 0.97
    # The log says in words what happened, and a line of progress says where the training is.
    for line in (r"worker \d on n\d is being taken back",
                 r"was taken back: the training goes on with 3 ranks instead of 4",
                 r"GPUs have become free: the training goes on with 4 ranks instead of 3",
                 r"\[0\] step \d+  epoch \d+  loss [\d.]+  world 4  left \d+ s"):
        assert re.search(line, done.stdout), line

    # The path is this machine's, and the checkpoint is there after the cluster is gone.
    path = done.stdout.split("here:\n")[1].strip()
    manifest = json.loads(open(f"{path}/manifest.json").read())
    assert manifest["files"]["state.pt"]["bytes"] == os.path.getsize(f"{path}/state.pt")
    assert demo.call("status", check=False).returncode == 3


def test_demo_does_not_disturb_one_that_runs(demo):
    demo.up()
    done = run_demo(demo)
    assert done.returncode == 1
    assert "is already up" in done.stderr
    assert demo.call("status", check=False).returncode == 0
