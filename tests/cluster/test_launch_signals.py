# SPDX-License-Identifier: Apache-2.0
"""Signals reach each rank's main process exactly once, by every way (case B15)."""
import re
import time

import pytest

from conftest import wait_for
from launch_helpers import COUNT_SIGNALS, LAUNCH, PYTHON, has_cgroup_freezer

PROCTRACKS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(not has_cgroup_freezer(),
                                                    reason="no writable cgroup v1 freezer here")),
    "linuxproc",
]


@pytest.fixture(params=PROCTRACKS)
def tracked(request, make_cluster):
    return make_cluster(proctrack=request.param)


def start(cluster, direct):
    cluster.write("count.py", COUNT_SIGNALS)
    line = f"{LAUNCH} {PYTHON} count.py"
    jobid = cluster.sbatch(f"srun -n4 -N2 {line}" if direct else f"exec {line}", "-N2", "-n4",
                           name="direct.sh" if direct else "front.sh")
    for rank in range(4):
        cluster.wait_output(jobid, f"main-{rank} ready")
        cluster.wait_output(jobid, f"child-{rank} ready")
    return jobid


def counts(cluster, jobid, number):
    text = cluster.output(jobid)
    return {who: len(re.findall(f"{who} got {number}$", text, re.MULTILINE))
            for rank in range(4) for who in (f"main-{rank}", f"child-{rank}")}


ONCE = {f"main-{r}": 1 for r in range(4)} | {f"child-{r}": 0 for r in range(4)}


@pytest.mark.parametrize("way", ["steps", "batch", "full", "direct"])
def test_each_signal_reaches_each_main_process_once(tracked, way):
    jobid = start(tracked, direct=way == "direct")
    # `exec` makes af-launch the process that the batch step knows: what the supervisor does for
    # scripts without it, in a cluster that has no plugin.
    options = {"steps": [], "direct": [], "batch": ["--batch"], "full": ["--full"]}[way]
    for number in ("USR1", "USR2", "TERM"):
        tracked.run("scancel", f"--signal={number}", *options, str(jobid))
        wait_for(lambda: all(counts(tracked, jobid, f"SIG{number}")[f"main-{r}"] >= 1
                             for r in range(4)), 10,
                 lambda: f"{number} at every rank: {tracked.output(jobid)}")
    time.sleep(1)  # a second one would come now: nothing can be awaited for what must not happen
    for number in ("SIGUSR1", "SIGUSR2", "SIGTERM"):
        assert counts(tracked, jobid, number) == ONCE, tracked.output(jobid)
    tracked.write("stop", "")
    job = tracked.wait_ended(jobid)
    assert job["ExitCode"] == "0:0", tracked.output(jobid)


def test_after_scancel_ranks_have_the_time_that_slurm_gives(tracked):
    """KillWait of the sandbox is 5 s: a rank that saves for 3 s has its file."""
    tracked.write("save.py", """\
import os, signal, sys, time
def save(number, frame):
    time.sleep(3)
    open("saved-" + os.environ["RANK"], "w").write("whole")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("rank", os.environ["RANK"], "ready", flush=True)
while True:
    time.sleep(0.1)
""")
    jobid = tracked.sbatch(f"exec {LAUNCH} {PYTHON} save.py", "-N2", "-n2")
    for rank in range(2):
        tracked.wait_output(jobid, f"rank {rank} ready")
    tracked.run("scancel", str(jobid))
    tracked.wait_ended(jobid)
    for rank in range(2):
        wait_for(lambda: tracked.host_path(f"saved-{rank}").exists(), 10,
                 lambda: f"saved-{rank}: {tracked.output(jobid)}")
        assert tracked.read(f"saved-{rank}") == "whole"
