# SPDX-License-Identifier: Apache-2.0
"""Failures: exit codes, the first failure in words, bad input in one line."""
import re
import time

import pytest

from launch_helpers import LAUNCH, PYTHON, events

ONE_FAILS = """\
import os, sys, time
print("rank", os.environ["RANK"], "works", flush=True)
if os.environ["RANK"] == "1":
    print("cannot go on", file=sys.stderr)
    sys.exit(7)
time.sleep(300)
"""


@pytest.mark.parametrize("where", [["-N2", "-n2"], ["-N1", "-n3"]], ids=["two nodes", "one node"])
def test_one_failed_rank_ends_all_and_gives_its_code(cluster, where):
    """Case B28."""
    cluster.write("fail.py", ONE_FAILS)
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} fail.py", *where, "--mem=1000")
    cluster.wait_state(jobid, "RUNNING", "ENDED")  # it may be over before we look
    start = time.monotonic()
    job = cluster.wait_ended(jobid, timeout=15)
    assert time.monotonic() - start < 10
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "7:0")
    text = cluster.output(jobid)
    host = "n2" if "-N2" in where else "n1"
    log = f"/af-runs/{jobid}/logs/attempt-0/gen-0/rank-1.log"
    assert f"the first failure was rank 1 on {host}: exit code 7" in text
    assert re.search(r"af-launch:   \| cannot go on\n", text), text
    assert re.search(f"its log is /\\S+{log}", text), text
    ends = {event["rank"]: event for event in events(cluster, f"af-runs/{jobid}")
            if event["event"] == "rank_exit"}
    assert ends[1]["code"] == 7 and ends[1]["host"] == host and ends[1]["log"].endswith(log)
    assert ends[0]["signal"] == 15
    assert events(cluster, f"af-runs/{jobid}")[-1]["code"] == 7


def test_one_failed_rank_under_srun(cluster):
    cluster.write("fail.py", ONE_FAILS)
    done = cluster.run("srun", "-N2", "-n2", "--mem=1000", LAUNCH, PYTHON, "fail.py", check=False)
    assert done.returncode == 7, done.stderr
    assert "the first failure was rank 1 on n2: exit code 7" in done.stderr


def test_a_site_that_kills_at_the_first_bad_exit(make_cluster):
    cluster = make_cluster(slurm_conf=["KillOnBadExit=1"])
    cluster.write("fail.py", ONE_FAILS)
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} fail.py", "-N2", "-n2")
    assert cluster.wait_ended(jobid, timeout=15)["ExitCode"] == "7:0"
    assert "the first failure was rank 1" in cluster.output(jobid)


@pytest.mark.parametrize("program, code", [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137),
                                           ("kill -11 $$", 139)])
def test_exit_codes(cluster, program, code):
    done = cluster.run("salloc", "-n2", "--mem=1000", LAUNCH, "bash", "-c", program, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""


def test_a_rank_that_ignores_term_is_killed_after_the_grace(cluster):
    cluster.write("stubborn.sh", "trap '' TERM\ntest $RANK = 1 && exit 3\n"
                  "while :; do sleep 0.1; done\n")
    start = time.monotonic()
    done = cluster.run("srun", "-n2", "--mem=1000", LAUNCH, "--grace=1", "bash", "stubborn.sh",
                       check=False)
    assert done.returncode == 3
    assert time.monotonic() - start < 10


BAD = [
    (["/no/such/program"], 127, "cannot run the program '/no/such/program'"),
    (["no-such-program"], 127, "cannot find the program 'no-such-program' in PATH"),
    (["/etc/passwd"], 126, "cannot run the program '/etc/passwd': Permission denied"),
    (["--run-dir=/proc/x", "true"], 122, "cannot .* run directory /proc/x"),
    (["--wrokers=2", "true"], 120, "unknown option '--wrokers'; did you mean --workers?"),
    (["--workers=x", "true"], 120, "--workers"),
    (["--bootstrap=pigeon", "true"], 120, "--bootstrap"),
    ([], 120, "no program given"),
]


@pytest.mark.parametrize("how", [["salloc", "-N2", "-n2"], ["srun", "-n2"]], ids=["batch", "srun"])
@pytest.mark.parametrize("arguments, code, words", BAD, ids=[b[2][:28] for b in BAD])
def test_bad_input_is_one_clear_line(cluster, how, arguments, code, words):
    start = time.monotonic()
    done = cluster.run(*how, "--mem=1000", LAUNCH, *arguments, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    ours = [line for line in done.stderr.splitlines() if line.startswith("af-launch: ")]
    assert len(ours) == 1 and re.search(words, ours.pop()), done.stderr
    assert time.monotonic() - start < 10


def test_a_full_or_forbidden_submit_directory(cluster):
    """Unwritable output: nothing is started, and the line names the directory."""
    cluster.run("mkdir", "/work/closed", root=True)
    cluster.run("chmod", "755", "/work/closed", root=True)
    done = cluster.run("salloc", "-n2", "--mem=1000", LAUNCH, "touch", "/work/users/ada/started",
                       cwd="/work/closed", check=False)
    assert done.returncode == 122
    assert "/work/closed/af-runs" in done.stderr and "Permission denied" in done.stderr
    assert not cluster.host_path("/work/users/ada/started").exists()
    cluster.run("rmdir", "/work/closed", root=True)
