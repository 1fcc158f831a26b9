# SPDX-License-Identifier: Apache-2.0
"""No process of a run outlives it, whatever ended it and whatever the ranks have forked (case B29)."""
import os
import re
import signal

import pytest

from conftest import wait_for
from launch_helpers import (LAUNCH, LEAVE_DAEMON, PYTHON, alive, has_cgroup_freezer, launchers,
                            parent, processes_of_run)

PROCTRACKS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(not has_cgroup_freezer(),
                                                    reason="no writable cgroup v1 freezer here")),
    "linuxproc",
]
GONE_WITHIN = 10  # seconds, as the users were promised


@pytest.fixture(params=PROCTRACKS)
def tracked(request, make_cluster):
    return make_cluster(proctrack=request.param)


def start(cluster, how, direct=False):
    """A job of 2 ranks on 2 nodes, each with a daemon; the daemons run when this returns."""
    cluster.write("leave.py", LEAVE_DAEMON)
    line = f"{LAUNCH} {PYTHON} leave.py {how}"
    jobid = cluster.sbatch(f"srun -n2 -N2 {line}\n" if direct else f"{line}\nexit $?\n",
                           "-N2", "-n2", "--mem=1000")
    if how == "wait":
        for rank in range(2):
            cluster.wait_output(jobid, f"rank {rank} ready")
    return jobid


def wait_gone(cluster, jobid):
    def none():
        return not processes_of_run(cluster, jobid) and not launchers(cluster, r"leave\.py")
    wait_for(none, GONE_WITHIN, lambda: f"{launchers(cluster, '.')}\n{cluster.output(jobid)}")
    # One process that keeps the step's output would hold it in COMPLETING for a minute.
    wait_for(lambda: cluster.state(jobid) not in ("RUNNING", "COMPLETING"), GONE_WITHIN,
             lambda: f"job {jobid} is {cluster.state(jobid)}")


@pytest.mark.parametrize("direct", [False, True], ids=["batch", "srun"])
@pytest.mark.parametrize("how", ["end", "fail"])
def test_daemons_end_with_the_ranks(tracked, how, direct):
    jobid = start(tracked, how, direct)
    tracked.wait_ended(jobid, timeout=20)
    wait_gone(tracked, jobid)
    text = tracked.output(jobid)
    assert re.search(r"^\[0\] daemon", text, re.MULTILINE), text
    assert tracked.job(jobid)["ExitCode"] == ("9:0" if how == "fail" else "0:0"), text


@pytest.mark.parametrize("direct", [False, True], ids=["batch", "srun"])
def test_daemons_end_at_scancel(tracked, direct):
    other = tracked.sbatch("exec sleep 300", "-N2", "-n2", "--mem=1000")
    jobid = start(tracked, "wait", direct)
    tracked.run("scancel", str(jobid))
    wait_gone(tracked, jobid)
    assert tracked.state(other) == "RUNNING"  # processes of other jobs are not touched


def victim(cluster, which):
    """The pid of one of the launcher's processes. The keeper is the one below slurmstepd."""
    ours = launchers(cluster, r"af-launch.*leave\.py")
    ours = {pid: line for pid, line in ours.items() if not line.startswith("srun ")}
    agents = {pid for pid in ours if "--agent" in ours[pid]}
    if which == "front":
        return next(pid for pid in ours if pid not in agents and "bash" not in ours[pid])
    task = {"coordinator": 0, "coordinator's keeper": 0}.get(which, 1)
    for pid in agents:
        environment = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
        is_keeper = parent(pid) not in agents
        if f"SLURM_PROCID={task}".encode() in environment and is_keeper == ("keeper" in which):
            return pid
    raise AssertionError(f"no {which} among {ours}")


@pytest.mark.parametrize("which", ["front", "coordinator", "agent", "coordinator's keeper",
                                   "agent's keeper", "rank"])
def test_nothing_is_left_after_kill_9(tracked, which):
    jobid = start(tracked, "wait")
    if which == "rank":
        pid = next(pid for pid, line in launchers(tracked, r"^\S*python3 leave\.py").items()
                   if "af-launch" in open(f"/proc/{parent(pid)}/cmdline").read())
    else:
        pid = victim(tracked, which)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), 5)
    wait_gone(tracked, jobid)
    job = tracked.wait_ended(jobid)
    assert job["JobState"] == "FAILED", job
    if which == "rank":
        assert job["ExitCode"] == "137:0"
