# SPDX-License-Identifier: Apache-2.0
"""Elastic runs on the sandbox, as tests see them: jobs, events, worlds, processes, faults."""
import json
import os
import pathlib
import re
import signal
import time

from launch_helpers import LAUNCH, PYTHON, alive, parent
from sandbox import wait_for

LOOP = "/opt/af/tests/programs/elastic_loop.py"
WORKER = ["--af-cpus-per-worker=2", "--af-ram-per-worker-gb=4", "--time=20"]
# The numbers of issue 3, and what is added on a machine that other builds and tests keep busy.
SLACK = float(os.environ.get("AF_TEST_SLACK", "4"))


def environment_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in text.decode(errors="replace").split("\0") if "=" in word)


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


class Run:
    """One elastic job. Times are seconds since 1970, as in events.jsonl."""

    def __init__(self, cluster, job):
        self.cluster, self.job = cluster, job
        self.directory = f"{cluster.cwd or '/work/users/ada'}/af-runs/{job}"

    # --- what it says

    def events(self, name=None):
        try:
            text = self.cluster.read(f"{self.directory}/events.jsonl")
        except OSError:
            return []
        lines = text.split("\n")[:-1]  # the last one may be half written
        found = [json.loads(line) for line in lines]
        return [event for event in found if name in (None, event["event"])]

    def wait_event(self, name, timeout=20, after=0.0, **fields):
        def there():
            for event in self.events(name):
                if event["t"] > after and all(event.get(key) == value for key, value in fields.items()):
                    return event
            return None
        return wait_for(there, timeout, lambda: f"{name} {fields} after {after}: {self.told()}", 0.02)

    def wait_world(self, size, timeout=20, after=0.0):
        """Until a world of this size has been formed and has taken its first step."""
        world = self.wait_event("world_formed", timeout, after, size=size)
        return world, self.wait_event("first_step", timeout, world["t"], generation=world["generation"])

    def told(self):
        """For the message of a failure."""
        lines = [json.dumps(event)[:250] for event in self.events() if event["event"] != "checkpoint"]
        output = [line for line in self.output().splitlines()
                  if not re.match(r"\[\d+\] (step|checkpoint) ", line)]
        return "\n".join([*lines[-25:], *output[-25:], self.cluster.run("squeue", check=False).stdout])

    def output(self):
        return self.cluster.output(self.job, f"slurm-{self.job}.out")

    def said(self):
        """The launcher's own lines."""
        return [line for line in self.output().splitlines() if line.startswith("af-launch:")]

    # --- its jobs and processes

    def satellites(self, *states):
        """{job: state} of those in the queue, by their name."""
        names = {event["name"] for event in self.events("satellite_submitted")}
        if not names:
            return {}
        done = self.cluster.run("squeue", "--me", "-h", "-n", ",".join(names), "-o", "%A %T", check=False)
        jobs = dict(line.split() for line in done.stdout.splitlines())
        return {job: state for job, state in jobs.items() if not states or state in states}

    def processes_of(self, job):
        """{pid: command} of everything of a job on its nodes: steps' daemons, scripts, programs."""
        found = {}
        for pid in self.cluster.processes():
            command = command_of(pid)
            if re.match(rf"slurmstepd: \[{job}\.", command) or \
                    environment_of(pid).get("SLURM_JOB_ID") == str(job) and alive(pid):
                found[pid] = command
        return found

    def rank_of(self, job):
        """The rank's process in a job."""
        def there():
            return [pid for pid, command in self.processes_of(job).items()
                    if re.match(rf"{PYTHON} \S+\.py", command) and "RANK" in environment_of(pid)]
        return wait_for(there, 10, f"a rank of job {job}")[0]

    def agent_of(self, job):
        return parent(self.rank_of(job))

    def joined(self):
        """{job: worker} of the satellites that are there."""
        found = {}
        for event in self.events():
            if event.get("job") and event["event"] == "worker_joined":
                found[event["job"]] = event["worker"]
            elif event.get("job") and event["event"] == "worker_lost":
                found.pop(event["job"], None)
        return found

    def other_node(self):
        """A satellite's job on a node without the anchor, and that node."""
        anchor = self.events("attempt_start")[-1]["host"]
        here = self.joined()
        return next((event["job"], event["host"]) for event in reversed(self.events("worker_joined"))
                    if event.get("job") in here and event["host"] != anchor)

    # --- what its ranks did

    def logs(self):
        """{"attempt-0/gen-1/rank-0": text}."""
        base = self.cluster.host_path(f"{self.directory}/logs")
        return {str(path.relative_to(base))[:-4]: path.read_text()
                for path in sorted(base.glob("attempt-*/gen-*/rank-*.log"))}

    def check_steps(self, last=None):
        """No step is missing, and none is taken twice by anybody: warm worlds lose nothing.

        A rank that was one step behind when a world was lost gets that step from the others.
        """
        taken = {}  # generation: {rank: steps}
        for text in self.logs().values():
            for generation, rank, step in re.findall(r"^step gen=(\d+) rank=(\d+)/\d+ step=(\d+) ",
                                                     text, re.MULTILINE):
                taken.setdefault(int(generation), {}).setdefault(int(rank), []).append(int(step))
        furthest = 0
        for generation in sorted(taken):
            ranks = taken[generation]
            for rank, steps in ranks.items():
                assert steps[0] == furthest + 1, (generation, rank, steps[0], furthest)
                assert steps == list(range(steps[0], steps[-1] + 1)), (generation, rank, steps)
            furthest = max(steps[-1] for steps in ranks.values())
        assert last is None or furthest == last
        return furthest

    def longest_pause(self, since):
        """Seconds between two steps of rank 0, from a time on."""
        times = sorted(float(t) for text in self.logs().values()
                       for t in re.findall(r"^step gen=\d+ rank=0/\d+ step=\d+ t=([\d.]+)$", text, re.M))
        times = [t for t in times if t > since]
        return max(later - earlier for earlier, later in zip(times, times[1:]))

    # --- its end

    def stop(self, timeout=30):
        """The program comes to its end; returns the job as Slurm knows it then."""
        self.cluster.write("stop", "")
        return self.cluster.wait_ended(self.job, timeout)

    def wait_gone(self, timeout=10):
        """No satellite in the queue and none of their processes; returns the seconds that it took."""
        begin = time.monotonic()
        jobs = {event["job"] for event in self.events("satellite_submitted")}

        def gone():
            return not self.satellites() and not any(self.processes_of(job) for job in jobs)
        wait_for(gone, timeout, lambda: f"{self.satellites()} have gone: {self.told()}", 0.1)
        return time.monotonic() - begin


def start(cluster, workers, *program, options=(), launch="--grow-interval 1"):
    """Submits an elastic job of PROGRAM (default: elastic_loop.py until it is told to stop)."""
    words = " ".join(map(str, program or (LOOP, 1000000)))
    script = f"#!/bin/bash\nexec {LAUNCH} {launch} {PYTHON} {words}\n"
    return Run(cluster, cluster.sbatch(script, f"--af-max-workers={workers}", *WORKER, *options))


def take_gpu(cluster, node, seconds=5):
    """A job of somebody more important: (its number, when it was submitted, when it ran)."""
    begin = time.time()
    job = cluster.sbatch(f"date +%s.%N\nsleep {seconds}\n", "-purgent", f"-w{node}", "--gres=gpu:1", "-c1",
                         "--mem=1G", "-ourgent-%j.txt", name="urgent.sh")
    text = wait_for(lambda: re.match(r"[\d.]+\n", cluster.output(job, f"urgent-{job}.txt")), 30,
                    "the urgent job runs")
    return job, begin, float(text[0])


def kill(*pids, number=signal.SIGKILL):
    """Sends a signal to processes; returns the time just before."""
    begin = time.time()
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return begin
