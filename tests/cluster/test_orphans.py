# SPDX-License-Identifier: Apache-2.0
"""What escapes from steps and batch scripts that have no af-launch is swept at their end (B29)."""
import re

import pytest

from conftest import wait_for
from launch_helpers import PYTHON, alive, has_cgroup_freezer, processes_of_run

PROCTRACKS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(not has_cgroup_freezer(),
                                                    reason="no writable cgroup v1 freezer here")),
    "linuxproc",
]
GONE_WITHIN = 10

# A daemon by the book: two forks, a session of its own, signals ignored, our output kept open.
DAEMON = """\
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    print("daemon of", sys.argv[1], flush=True)
    open("up-" + sys.argv[1], "w").close()
    while True:
        time.sleep(1)
os.wait()
while not os.path.exists("up-" + sys.argv[1]):
    time.sleep(0.02)
"""


@pytest.fixture(params=PROCTRACKS)
def tracked(request, make_cluster):
    return make_cluster(proctrack=request.param)


def wait_gone(cluster, jobid):
    wait_for(lambda: not processes_of_run(cluster, jobid), GONE_WITHIN,
             lambda: f"processes {processes_of_run(cluster, jobid)} of run {jobid}")
    # A daemon that holds a step's output keeps its job COMPLETING for a minute.
    wait_for(lambda: cluster.state(jobid) not in ("RUNNING", "COMPLETING"), GONE_WITHIN,
             lambda: f"job {jobid} is {cluster.state(jobid)}")


def test_daemon_of_a_plain_step_ends_with_the_step(tracked):
    """srun does not wait a minute for output that never ends, and the next step starts clean."""
    tracked.write("daemon.py", DAEMON)
    jobid = tracked.sbatch(f"srun -n2 {PYTHON} daemon.py step-$SLURM_JOB_ID\n"
                           "echo first step over\nsleep 100\n", "--af-n-workers=2", "-N2")
    tracked.wait_output(jobid, "first step over", timeout=20)

    def daemons():
        return [pid for pid in processes_of_run(tracked, jobid)
                if b"daemon.py" in open(f"/proc/{pid}/cmdline", "rb").read()]
    wait_for(lambda: not daemons(), GONE_WITHIN)
    assert tracked.state(jobid) == "RUNNING"
    tracked.run("scancel", str(jobid))
    wait_gone(tracked, jobid)


@pytest.mark.parametrize("end", ["script", "fail", "scancel"])
def test_daemon_of_the_script_ends_with_the_job(tracked, end):
    tracked.write("daemon.py", DAEMON)
    last = {"script": "exit 0", "fail": "exit 3", "scancel": "sleep 100"}[end]
    jobid = tracked.sbatch(f"{PYTHON} daemon.py script\necho daemon is up\n{last}\n",
                           "--af-n-workers=1")
    tracked.wait_output(jobid, "daemon is up")
    if end == "scancel":
        tracked.run("scancel", str(jobid))
    wait_gone(tracked, jobid)
    assert tracked.job(jobid)["ExitCode"] == {"script": "0:0", "fail": "3:0"}.get(
        end, tracked.job(jobid)["ExitCode"])


def test_other_jobs_and_steps_of_the_user_are_left_alone(tracked):
    """Three neighbours on the node with the same daemon: an af job, a plain job, another step."""
    tracked.write("daemon.py", DAEMON)
    stay = "while [ ! -e stop ]; do sleep 0.1; done\n"
    neighbour = tracked.sbatch(f"{PYTHON} daemon.py af\n{stay}", "--af-n-workers=1", "-w", "n1")
    plain = tracked.sbatch(f"{PYTHON} daemon.py plain\n{stay}", "--mem=1000", "-w", "n1")
    jobid = tracked.sbatch(
        f"srun --overlap -n1 {PYTHON} daemon.py short\n"
        f"srun --overlap -n1 sh -c '{PYTHON} daemon.py long; sleep 100' &\n"
        f"while [ ! -e up-long ]; do sleep 0.1; done\n"
        f"srun --overlap -n1 {PYTHON} daemon.py third\necho third over\n{stay}",
        "--af-n-workers=1", "-w", "n1")
    tracked.wait_output(neighbour, "daemon of af")
    tracked.wait_output(plain, "daemon of plain")
    tracked.wait_output(jobid, "third over")

    def daemon(name):
        return [pid for pid in tracked.processes()
                if alive(pid) and re.search(rb"daemon\.py\0" + name.encode() + rb"\0",
                                            read(f"/proc/{pid}/cmdline"))]
    wait_for(lambda: not daemon("short") and not daemon("third"), GONE_WITHIN)
    # The step that still runs keeps its daemon, and so do the other jobs, also after this one.
    assert daemon("long")
    tracked.run("scancel", str(jobid))
    wait_gone(tracked, jobid)
    assert not daemon("long")
    assert daemon("af") and daemon("plain")
    tracked.write("stop", "")
    wait_gone(tracked, neighbour)
    assert not daemon("af")
    tracked.wait_ended(plain)
    # A plain job is Slurm's alone: what it leaves behind is ours in this test only.
    for pid in daemon("plain"):
        tracked.run("kill", "-9", str(inner_pid(pid)), root=True)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def inner_pid(pid):
    """The number of a process inside its sandbox."""
    return int(re.search(r"^NSpid:.*\t(\d+)$", read(f"/proc/{pid}/status").decode(), re.M)[1])
