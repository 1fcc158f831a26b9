# SPDX-License-Identifier: Apache-2.0
"""Satellites of an elastic run against a real Slurm: submitted, found and cancelled by their name.

The coordinator is tests/programs/drive_satellites, a small Python program stands for af-launch.
"""
import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import threading
import time

import pytest

from sandbox import wait_for

DRIVER = "/opt/af/build/tests/programs/drive_satellites"
SHIELD = "/opt/af/build/lib/libaf_srun_shield.so"

# Ends with 0 when it is told to, as an agent does.
AGENT = """\
#!/usr/bin/python3
import os, signal, sys, time
def leave(number, frame):
    os.write(1, b"told\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("agent", *sys.argv[1:], flush=True)
print("step", os.environ["SLURM_STEP_ID"], "gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
while True:
    time.sleep(1)
"""

SPARE = "PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=3 State=UP"


class Driver:
    """drive_satellites as a subprocess; its lines are read by a thread."""

    def __init__(self, cluster, name, agent=AGENT, env=None):
        self.cluster, self.name = cluster, name
        program = cluster.write("agent.py", agent, mode=0o755)
        cwd = cluster.cwd or "/work/users/ada"
        cluster.run("mkdir", "-p", f"{cwd}/run")
        self.process = cluster.popen(DRIVER, f"{cwd}/run", name, program, SHIELD, env=env,
                                     stdin=subprocess.PIPE, stderr=None)
        self.events, self.said, self.stopped = [], [], False
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def tell(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def update(self):
        with contextlib.suppress(queue.Empty):
            while True:
                word, _, rest = self.lines.get_nowait().partition(" ")
                if word == "event":
                    event, _, fields = rest.partition(" ")
                    self.events.append((event, json.loads(fields)))
                elif word == "say":
                    self.said.append(rest)
                else:
                    self.stopped = True

    def jobs_of(self, event):
        self.update()
        return [fields["job"] for name, fields in self.events if name == event]

    def wait_submitted(self, count, timeout=60):
        return wait_for(lambda: self.jobs_of("satellite_submitted")[count - 1:], timeout,
                        lambda: f"{count} submissions: {self.events} {self.said}") and \
            self.jobs_of("satellite_submitted")

    def queued(self, *states):
        """{job: state} of this name in the queue."""
        done = self.cluster.run("squeue", "--me", "-h", "-n", self.name, "-o", "%A %T", check=False)
        jobs = dict(line.split() for line in done.stdout.splitlines())
        return {job: state for job, state in jobs.items() if not states or state in states}

    def stop(self):
        self.tell("stop")
        wait_for(lambda: (self.update(), self.stopped)[1], 30, "the pool has stopped")
        assert self.process.wait(timeout=30) == 0


@contextlib.contextmanager
def driving(cluster, name, **options):
    driver = Driver(cluster, name, **options)
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.wait()


def cancel(cluster, name, seconds=8, check=True):
    return cluster.run(DRIVER, "--cancel", name, str(seconds), check=check)


def theirs(cluster, name="theirs"):
    """Another job of the person, pending."""
    return cluster.sbatch("sleep 1000", "--hold", f"--job-name={name}", name="theirs.sh")


# What a step, a script or a rank of the anchor has in its environment, and must not reach sbatch.
ANCHORS = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_GPU": "32768", "SBATCH_PARTITION": "urgent",
           "SLURM_SPANK__SLURM_SPANK_OPTION_af_af_max_workers": "4", "AF_CPUS_PER_WORKER": "3",
           "AF_MAX_WORKERS": "4", "SBATCH_TIMELIMIT": "7"}


@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_life_of_satellites(make_cluster, proctrack):
    if proctrack == "cgroup" and os.geteuid() != 0:
        pytest.skip("needs root for proctrack/cgroup")
    cluster = make_cluster(proctrack=proctrack)
    other = theirs(cluster)
    with driving(cluster, "af-test-1", env=ANCHORS) as driver:
        driver.tell("want 2")
        first, second = driver.wait_submitted(2)
        for job in (first, second):
            found = cluster.wait_running(job)
            assert found["Partition"] == "spare"
            assert found["JobName"] == "af-test-1"
            assert found["Comment"] == "af:test"
            assert found["CPUs/Task"] == "3"
            assert found["Requeue"] == "0"
            assert found["TimeLimit"] == "00:14:00"
            assert found["Deadline"] != "Unknown"
            cluster.wait_output(job, r"^agent --join=10\.99\.0\.1:1 --run-dir=/work/.*/run$")
            cluster.wait_output(job, r"^step 0 gpus \S+$")
            driver.tell(f"joined {job} {found['NodeList']}")
        # Told in its step, it goes with 0, and its GPU is free at once: no minute of COMPLETING.
        told = time.monotonic()
        cluster.run("scancel", "--signal=TERM", first)
        assert cluster.wait_state(first, "COMPLETED", timeout=20)["ExitCode"] == "0:0"
        assert time.monotonic() - told < 20
        driver.tell(f"left {first} 5 explained")
        # And the next one comes.
        third = driver.wait_submitted(3)[2]
        cluster.wait_running(third)
        # scancel: the step hears of it, and the end is quick as well.
        cluster.wait_output(third, "^step 0")
        assert cancel(cluster, "af-test-1").stdout == "done\n"
        for job in (second, third):
            cluster.wait_state(job, "CANCELLED", timeout=20)
            cluster.wait_output(job, "^told$")
        driver.stop()
    assert cluster.state(other) == "PENDING"
    assert not driver.said


def test_pending_ones_are_cancelled_and_others_are_not(cluster):
    other = theirs(cluster)
    # All GPUs are taken: nothing starts.
    full = cluster.sbatch("sleep 1000", "--partition=urgent", "--nodes=3", "--exclusive",
                          "--gres=gpu:2", name="full.sh")
    cluster.wait_running(full)
    with driving(cluster, "af-test-2") as driver:
        driver.tell("want 5")
        jobs = driver.wait_submitted(2)
        wait_for(lambda: len(driver.queued("PENDING")) == 2, 10, "two are pending")
        driver.tell("want 1")
        # The younger one.
        cluster.wait_state(jobs[1], "CANCELLED")
        assert list(driver.queued()) == [jobs[0]]
        driver.stop()
        assert not driver.queued()
        assert driver.jobs_of("satellite_submitted") == jobs
    assert cluster.state(other) == "PENDING"
    assert cluster.state(full) == "RUNNING"


def test_a_crash_of_the_controller(make_cluster):
    cluster = make_cluster()
    with driving(cluster, "af-test-3") as driver:
        driver.tell("want 2")
        before = driver.wait_submitted(1)
        # Within a second of the submission, before its state is saved.
        (controller,) = [pid for pid in cluster.processes() if comm(pid) == "slurmctld"]
        os.kill(controller, signal.SIGKILL)
        wait_for(lambda: comm(controller) != "slurmctld", 10, "slurmctld has gone")
        # Last acts do not wait for ever, and do not claim to have done what they have not.
        failed = cancel(cluster, "af-nobody", seconds=1, check=False)
        assert failed.returncode == 1
        assert "has not answered" in failed.stdout
        cluster.run("slurmctld", root=True)
        wait_for(lambda: "UP" in cluster.run("scontrol", "ping", check=False).stdout, 20, "it is back")
        # The number that it may have lost goes to somebody else's job.
        other = theirs(cluster)
        wait_for(lambda: len(driver.queued("PENDING", "RUNNING")) == 2, 120,
                 lambda: f"two satellites after {before}: {driver.queued()} {driver.events} {driver.said}")
        driver.tell("want 0")
        driver.stop()
        assert cancel(cluster, "af-test-3").stdout == "done\n"
        wait_for(lambda: not driver.queued(), 30, lambda: f"none is left: {driver.queued()}")
    assert cluster.state(other) == "PENDING"


def comm(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_a_refusal_is_said_once_and_that_is_all(make_cluster):
    cluster = make_cluster(slurm_conf=[SPARE + " AllowGroups=root"])
    with driving(cluster, "af-test-4") as driver:
        driver.tell("want 3")
        wait_for(lambda: (driver.update(), driver.said)[1], 30, "it says so")
        driver.tell("want 4")
        driver.stop()
        driver.update()
        assert [name for name, _ in driver.events] == ["satellite_refused"]
        assert len(driver.said) == 1
        assert "group not permitted" in driver.said[0]
        assert not driver.queued()


@pytest.mark.parametrize("limits", ["NO", "ALL"])
def test_the_partition_allows_less_time_than_the_anchor_has(make_cluster, limits):
    cluster = make_cluster(slurm_conf=[SPARE + " MaxTime=00:11:00", f"EnforcePartLimits={limits}"])
    with driving(cluster, "af-test-5") as driver:
        driver.tell("want 1")
        (job,) = driver.wait_submitted(1)
        # Slurm cuts it to the maximum, or refuses it and is asked for half.
        limit = {"NO": "00:11:00", "ALL": "00:07:00"}[limits]
        assert cluster.wait_running(job)["TimeLimit"] == limit
        assert not driver.said


def test_one_that_dies_at_its_start_costs_its_node(cluster):
    with driving(cluster, "af-test-6", agent="#!/bin/sh\nexit 3\n") as driver:
        driver.tell("want 1")
        (job,) = driver.wait_submitted(1)
        node = cluster.wait_ended(job)["NodeList"]
        second = driver.wait_submitted(2, timeout=90)[1]
        assert cluster.job(second)["ExcNodeList"] == node
        assert any(name == "node_excluded" and fields["node"] == node
                   for name, fields in driver.events), driver.events
