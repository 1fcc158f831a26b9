# SPDX-License-Identifier: Apache-2.0
"""What the tests of the plugin (test_spank_*.py) share: requests, refusals."""

import json
import re
import subprocess

# What differs between two submissions of the same request: identity, time, place, priority, and the
# session id of the shell that submitted.
VOLATILE = {
    "JobId",
    "UserId",
    "SubmitTime",
    "EligibleTime",
    "AccrueTime",
    "StartTime",
    "EndTime",
    "LastSchedEval",
    "RunTime",
    "Priority",
    "NodeList",
    "BatchHost",
    "JobState",
    "Reason",
    "ExitCode",
    "StdErr",
    "StdOut",
    "StdIn",
    "Scheduler",
    "AllocNode:Sid",
    "NodeCnt",
    "Command",
    "WorkDir",
    "JobName",
    "TRES",
    "BatchFlag",
    "SecsPreSuspend",
    "Requeue",
}


def request_of(cluster, jobid):
    """The job's fields of `scontrol show job`, less VOLATILE."""
    return {key: value for key, value in cluster.job(jobid).items() if key not in VOLATILE}


def shape_of(cluster, jobid):
    """The part that af decides."""
    job = cluster.job(jobid)
    names = ("Partition", "NumTasks", "CPUs/Task", "MemPerTres", "TresPerTask", "Features")
    return {name: job.get(name, "") for name in names}


def shape(tasks, *, partition="kept", cpus=8, mem_gb=32, gpus="gpu:1", features="(null)"):
    """What shape_of() gives for `tasks` workers."""
    return {
        "Partition": partition,
        "NumTasks": str(tasks),
        "CPUs/Task": str(cpus),
        "MemPerTres": f"gres:gpu:{mem_gb * 1024}",
        "TresPerTask": f"gres:{gpus}",
        "Features": features,
    }


def hold(cluster, *options, command="sbatch", env=None, script="job.sh", cwd=None):
    """Submits a held job (it uses no nodes) and returns its id."""
    done = cluster.run(command, "--hold", "--parsable", *options, script, env=env, cwd=cwd)
    assert re.fullmatch(r"\d+\n", done.stdout), f"stdout is not a job id alone: {done.stdout!r}"
    return int(done.stdout)


def refused(done, *words):
    """`done` failed with one line of ours on stderr that has `words`, and printed nothing."""
    lines = [line for line in done.stderr.splitlines() if ": error: af: " in line]
    assert done.returncode != 0, f"not refused: {done.stdout}{done.stderr}"
    assert done.stdout == "", done.stdout
    assert len(lines) == 1, f"not one line of ours:\n{done.stderr}"
    for word in words:
        assert word in lines[0], f"'{word}' is not in: {lines[0]}"
    return lines[0]


_MANY = """
import json, subprocess, sys
for line in json.load(sys.stdin):
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""


def run_many(cluster, lines):
    """Runs the command lines one after the other (entering the sandbox once)."""
    done = cluster.run("/usr/bin/python3", "-c", _MANY, input=json.dumps(lines), timeout=120)
    results = [json.loads(text) for text in done.stdout.splitlines()]
    return [subprocess.CompletedProcess(line, *result) for line, result in zip(lines, results)]
