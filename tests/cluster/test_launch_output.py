# SPDX-License-Identifier: Apache-2.0
"""Output of ranks: whole lines, nothing lost, a log for each rank that is never truncated (B37)."""
import re

from launch_helpers import LAUNCH, PYTHON

CHATTER = """\
import os, sys
rank = os.environ["RANK"]
for i in range(3000):
    stream = sys.stderr if i % 3 == 0 else sys.stdout
    stream.write(f"line {i} of rank {rank} " + "x" * (i % 200) + "\\n")
    stream.flush()
"""


def test_lines_are_whole_and_complete(cluster):
    cluster.write("chatter.py", CHATTER)
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} chatter.py", "-N2", "-n4", "-c1", "--mem=1000")
    assert cluster.wait_ended(jobid)["ExitCode"] == "0:0"
    text = cluster.output(jobid)
    for rank in range(4):
        expected = {f"line {i} of rank {rank} " + "x" * (i % 200) for i in range(3000)}
        merged = [line[4:] for line in text.splitlines() if line.startswith(f"[{rank}] ")]
        assert len(merged) == 3000 and set(merged) == expected
        log = cluster.read(f"af-runs/{jobid}/logs/attempt-0/gen-0/rank-{rank}.log").splitlines()
        assert len(log) == 3000 and set(log) == expected


def test_the_last_words_of_a_killed_rank(cluster):
    cluster.write("die.py", """\
import os, signal, sys
for i in range(1000):
    print("before", i)
sys.stdout.write("half a line")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
""")
    done = cluster.run("srun", "-n1", "--mem=1000", LAUNCH, PYTHON, "die.py", check=False)
    assert done.returncode == 137
    assert done.stdout.endswith("[0] before 999\n[0] half a line\n")
    assert "af-launch:   | half a line" in done.stderr
    log = next(cluster.host_path("af-runs").rglob("rank-0.log"))
    assert log.read_text().endswith("before 999\nhalf a line\n")


def test_python_is_not_buffered(cluster):
    """The line is there while the rank still runs, although its output is a pipe."""
    cluster.write("slow.py", "import time\nprint('early')\ntime.sleep(600)\n")
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} slow.py", "-n1", "--mem=1000")
    cluster.wait_output(jobid, r"^\[0\] early$")
    cluster.run("scancel", str(jobid))
    cluster.wait_ended(jobid)


def test_bytes_that_are_no_text_and_progress_bars(cluster):
    cluster.write("odd.py", """\
import os
os.write(1, b"\\xff\\xfe\\n")
os.write(2, b"\\r10%\\r20%\\r30%\\n")
""")
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} odd.py", "-n1", "--mem=1000")
    assert cluster.wait_ended(jobid)["ExitCode"] == "0:0"
    log = next(cluster.host_path("af-runs").rglob("rank-0.log")).read_bytes()
    assert b"\xff\xfe\n" in log and b"20%\r" in log


def test_stdout_has_the_ranks_output_alone(cluster):
    done = cluster.run("salloc", "-N2", "-n2", "--mem=1000", LAUNCH, "--verbose", "echo", "x")
    assert sorted(done.stdout.splitlines()) == ["[0] x", "[1] x"]
    ours = [line for line in done.stderr.splitlines() if not line.startswith("salloc:")]
    assert ours and all(line.startswith("af-launch: ") for line in ours), done.stderr


def test_a_requeued_job_keeps_its_first_log(cluster):
    jobid = cluster.sbatch(f"{LAUNCH} bash -c 'echo attempt $AF_ATTEMPT; sleep 300'", "-n1",
                           "--mem=1000", "--requeue", "--open-mode=append")
    cluster.wait_output(jobid, "attempt 0")
    cluster.run("scontrol", "requeue", str(jobid))
    cluster.wait_output(jobid, "attempt 1", timeout=60)
    cluster.run("scancel", str(jobid))
    cluster.wait_ended(jobid)
    for attempt in range(2):
        log = cluster.read(f"af-runs/{jobid}/logs/attempt-{attempt}/gen-0/rank-0.log")
        assert re.match(f"attempt {attempt}\n", log)
