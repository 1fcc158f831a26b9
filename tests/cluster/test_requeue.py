# SPDX-License-Identifier: Apache-2.0
"""Jobs that are taken away: notice, save, requeue, and when not (cases B16 to B24).

The programs are plain: a TERM handler, a file in AF_CHECKPOINT_DIR, no client of af's.
"""
import json
import os
import re
import signal

import pytest

from conftest import wait_for
from launch_helpers import LAUNCH, PYTHON, events, launchers, parent

# Saves when told to, after DELAY seconds; `stop-RUN` in its directory ends the training.
TRAIN = """\
import os, signal, sys, time
attempt, rank, checkpoints = (os.environ[n] for n in ("AF_ATTEMPT", "RANK", "AF_CHECKPOINT_DIR"))
def save(number, frame):
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
    with open(f"{checkpoints}/saved-{attempt}-{rank}", "w") as file:
        file.write("whole")
    os.write(1, f"attempt {attempt} has saved\\n".encode())
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("attempt", attempt, "of", os.environ["AF_RUN_ID"], "has", sorted(os.listdir(checkpoints)),
      flush=True)
while not os.path.exists("stop-" + os.environ["AF_RUN_ID"]):
    time.sleep(0.05)
print("done", flush=True)
"""
# Knows nothing of signals and saves nothing.
BARE = """\
import os, time
print("attempt", os.environ["AF_ATTEMPT"], "runs", flush=True)
time.sleep(600)
"""
CLOCK = r"\d\d:\d\d:\d\d \(in \d+ s\)"


def start(cluster, *options, launch=(), program=TRAIN, arguments=(), ready="attempt 0"):
    cluster.write("train.py", program)
    line = " ".join([LAUNCH, *launch, PYTHON, "train.py", *map(str, arguments)])
    jobid = cluster.sbatch(f"{line}\nexit $?\n", "--af-n-workers=1", *options)
    if ready:
        cluster.wait_output(jobid, ready)
    return jobid


def take_back(cluster, jobid):
    """Another job needs the node of `jobid`."""
    return cluster.sbatch("sleep 1", "-p", "urgent", "--exclusive", "-w",
                          cluster.job(jobid)["NodeList"], name="urgent.sh")


def notices(text):
    return re.findall(r"af-launch: notice: (.*)", text)


def names(cluster, run):
    return [event["event"] for event in events(cluster, f"af-runs/{run}")]


def end_training(cluster, jobid):
    cluster.write(f"stop-{jobid}", "")
    return cluster.wait_ended(jobid)


def wait_restart(cluster, jobid, attempt=1):
    """Until the next attempt has begun; returns the output of the whole job."""
    path = cluster.job(jobid)["StdOut"]
    cluster.wait_output(jobid, rf"attempt {attempt} (of|runs)", timeout=60, path=path)
    return cluster.output(jobid, path)


def assert_requeued_once(cluster, jobid, reason, text=None):
    text = text or wait_restart(cluster, jobid)
    assert len(notices(text)) == 1, text
    assert re.fullmatch(f"{reason}, the job ends by {CLOCK}", notices(text)[0]), text
    assert f"af-launch: job {jobid} is requeued ({reason}): attempt 1 " in text
    # The first attempt's text is still there (case B24), and the second finds its checkpoint.
    assert f"attempt 0 of {jobid} has []" in text and "attempt 0 has saved" in text
    assert f"attempt 1 of {jobid} has ['saved-0-0']" in text
    job = end_training(cluster, jobid)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("COMPLETED", "0:0", "1"), text
    told = [event for event in events(cluster, f"af-runs/{jobid}") if event["event"] == "requeue"]
    assert [(event["reason"], event["attempt"]) for event in told] == [(reason, 0)]
    for attempt in (0, 1):
        log = cluster.read(f"af-runs/{jobid}/logs/attempt-{attempt}/gen-0/rank-0.log")
        assert f"attempt {attempt} of {jobid}" in log


def test_preempted_job_saves_and_goes_on(cluster):
    """Case B17, B24. Of its grace time Slurm tells the step alone."""
    jobid = start(cluster, "-p", "spare")
    take_back(cluster, jobid)
    wait_for(lambda: "requeue" in names(cluster, jobid), 20, lambda: cluster.output(jobid))
    # What the run looks like between two attempts.
    assert json.loads(cluster.read(f"af-runs/{jobid}/state.json"))["state"] == "requeued"
    assert_requeued_once(cluster, jobid, "preempted")


def test_time_limit_announced_by_us_and_by_slurm(cluster):
    """Two jobs: one is told ahead of its limit, the other by Slurm's TERM (looked at each 30 s)."""
    jobid = start(cluster, "-t", "1", launch=["--save-before=50"])
    slurms = start(cluster, "-t", "60", launch=["--save-before=0"], arguments=[1])
    cluster.run("scontrol", "update", f"JobId={slurms}", "EndTime=now+1", root=True)
    assert_requeued_once(cluster, jobid, "time limit")
    assert_requeued_once(cluster, slurms, "time limit")
    assert "DUE TO TIME LIMIT" not in cluster.output(jobid)
    assert "DUE TO TIME LIMIT" in cluster.output(slurms)


def test_scancel_is_told_and_final(cluster):
    """Case B17."""
    jobid = start(cluster)
    cluster.run("scancel", str(jobid))
    job = cluster.wait_ended(jobid)
    wait_for(lambda: notices(cluster.output(jobid)), 10, lambda: cluster.output(jobid))
    text = cluster.output(jobid)
    assert (job["JobState"], job["Restarts"]) == ("CANCELLED", "0")
    assert len(notices(text)) == 1 and re.match(f"cancelled, .*{CLOCK}", notices(text)[0]), text
    assert "attempt 0 has saved" in text and "requeue" not in text
    assert cluster.read(f"af-runs/{jobid}/checkpoints/saved-0-0") == "whole"
    assert "requeue" not in names(cluster, jobid)


def test_scancel_within_the_grace_time_is_final(make_cluster):
    spare = ("PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 "
             "MaxTime=2-00:00:00 State=UP")
    cluster = make_cluster(slurm_conf=[spare])
    jobid = start(cluster, "-p", "spare", arguments=[4])
    take_back(cluster, jobid)
    cluster.wait_output(jobid, "notice: preempted")
    cluster.run("scancel", str(jobid))
    assert cluster.wait_ended(jobid)["JobState"] in ("CANCELLED", "PREEMPTED")
    cluster.wait_output(jobid, "notice: cancelled")
    wait_for(lambda: "run_end" in names(cluster, jobid), 10)
    assert "requeue" not in names(cluster, jobid)
    assert cluster.job(jobid)["Restarts"] == "0"


def test_one_task_of_an_array_is_requeued_alone(cluster):
    """Case B21."""
    cluster.write("train.py", TRAIN)
    # Two T4s each: one task on n1, one on n2.
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} train.py\n", "-p", "spare", "--af-n-workers=2",
                           "--af-min-gpu-memory-gb=16", "-N1", "--array=0-1")
    out = {task: f"{cluster.cwd}/slurm-{jobid}_{task}.out" for task in (0, 1)}
    for task in (0, 1):
        cluster.wait_output(f"{jobid}_{task}", f"attempt 0 of {jobid}_{task}", path=out[task])
    take_back(cluster, f"{jobid}_1")
    cluster.wait_output(jobid, f"job {jobid}_1 is requeued", path=out[1])
    cluster.wait_output(jobid, f"attempt 1 of {jobid}_1 has", timeout=60, path=out[1])
    assert cluster.job(f"{jobid}_0")["Restarts"] == "0"
    assert cluster.state(f"{jobid}_0") == "RUNNING"
    for task in (0, 1):
        assert end_training(cluster, f"{jobid}_{task}")["Restarts"] == str(task)
    undisturbed = cluster.output(jobid, out[0])
    assert "notice" not in undisturbed and "attempt 1" not in undisturbed
    assert len(notices(cluster.output(jobid, out[1]))) == 1
    assert "requeue" in names(cluster, f"{jobid}_1")
    assert "requeue" not in names(cluster, f"{jobid}_0")


def test_a_programs_own_failure_is_not_repeated(cluster):
    """Case B23."""
    jobid = start(cluster, "--requeue", program="raise SystemExit(1)\n", ready=None)
    job = cluster.wait_ended(jobid)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "1:0", "0")
    assert "requeue" not in cluster.output(jobid)


def test_three_attempts_without_progress_are_the_last(cluster):
    """Case B23. Two attempts end by somebody's requeue, with the program killed."""
    jobid = start(cluster, "-p", "spare", program=BARE, ready="attempt 0 runs")
    path = cluster.job(jobid)["StdOut"]
    for attempt in (1, 2):
        cluster.run("scontrol", "requeue", str(jobid))
        wait_restart(cluster, jobid, attempt)
    take_back(cluster, jobid)
    job = cluster.wait_ended(jobid)
    text = cluster.output(jobid, path)
    assert (job["JobState"], job["ExitCode"], job["Restarts"]) == ("FAILED", "124:0", "2"), text
    assert f"job {jobid} is not started again: 3 attempts in a row" in text
    assert [e["code"] for e in events(cluster, f"af-runs/{jobid}")
            if e["event"] == "no_progress"] == [124]
    assert len(notices(text)) == 3, text  # one for each attempt
    # Somebody has mended what was wrong and says so.
    cluster.run("scontrol", "requeue", str(jobid))
    wait_restart(cluster, jobid, 3)
    cluster.run("scancel", str(jobid))


def test_attempts_that_slurm_starts_all_the_same_are_refused(cluster):
    jobid = start(cluster, program=BARE, ready="attempt 0 runs")
    path = cluster.job(jobid)["StdOut"]
    for attempt in (1, 2):
        cluster.run("scontrol", "requeue", str(jobid))
        wait_restart(cluster, jobid, attempt)
    cluster.run("scontrol", "requeue", str(jobid))
    job = cluster.wait_state(jobid, "FAILED", timeout=60)
    text = cluster.output(jobid, path)
    assert (job["ExitCode"], job["Restarts"]) == ("124:0", "3"), text
    assert "3 attempts in a row" in text and "attempt 3 runs" not in text


def test_no_requeue_gives_123(cluster):
    jobid = start(cluster, "-p", "spare", "--no-requeue")
    take_back(cluster, jobid)
    job = cluster.wait_ended(jobid)
    text = cluster.output(jobid)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "123:0"), text
    assert "it was submitted with --no-requeue" in text and len(notices(text)) == 1


def test_salloc_says_that_it_is_not_started_again(cluster):
    cluster.write("train.py", TRAIN)
    line = f"{LAUNCH} {PYTHON} train.py; echo code $?"
    with cluster.popen("salloc", "-p", "spare", "--af-n-workers=1", "bash", "-c", line) as salloc:
        def job():
            return cluster.run("squeue", "-h", "-o", "%A", "-p", "spare").stdout.strip()
        jobid = int(wait_for(job, 20))
        wait_for(lambda: cluster.host_path(f"af-runs/{jobid}/logs/attempt-0/gen-0/rank-0.log")
                 .exists() and "has []" in
                 cluster.read(f"af-runs/{jobid}/logs/attempt-0/gen-0/rank-0.log"), 20)
        take_back(cluster, jobid)
        out, err = salloc.communicate(timeout=60)
    assert "code 123" in out, out + err
    assert "only jobs of sbatch" in err and len(notices(err)) == 1


def test_step_in_a_batch_script_is_requeued_too(cluster):
    """No front there: the agent of task 0 sees to it."""
    cluster.write("train.py", TRAIN)
    jobid = cluster.sbatch(f"srun {LAUNCH} {PYTHON} train.py\n", "-p", "spare", "--af-n-workers=1")
    cluster.wait_output(jobid, "attempt 0")
    take_back(cluster, jobid)
    assert_requeued_once(cluster, jobid, "preempted")


def test_srun_gives_123(cluster):
    cluster.write("train.py", TRAIN)
    with cluster.popen("srun", "-p", "spare", "--af-n-workers=1", LAUNCH, PYTHON,
                       "train.py") as srun:
        assert "attempt 0" in srun.stdout.readline()
        take_back(cluster, int(cluster.run("squeue", "-h", "-o", "%A", "-p", "spare").stdout))
        _, err = srun.communicate(timeout=60)
    assert srun.returncode == 123, err
    assert "only jobs of sbatch" in err and len(notices(err)) == 1


@pytest.mark.parametrize("grace", [0, 3])
def test_preempt_mode_cancel(make_cluster, grace):
    """Case B22: --requeue alone does nothing there."""
    spare = (f"PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime={grace} "
             "MaxTime=2-00:00:00 State=UP")
    cluster = make_cluster(slurm_conf=[spare])
    jobid = start(cluster, "-p", "spare", arguments=[0.5])
    take_back(cluster, jobid)
    assert_requeued_once(cluster, jobid, "preempted")


def test_a_save_that_outlasts_the_grace_time_is_requeued_in_time(make_cluster):
    """Slurm kills while it is still saving: with PreemptMode=CANCEL nobody else would requeue."""
    spare = ("PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode=CANCEL "
             "MaxTime=2-00:00:00 State=UP")
    cluster = make_cluster(slurm_conf=[spare])
    jobid = start(cluster, "-p", "spare", arguments=[60])  # KillWait is 5 s
    take_back(cluster, jobid)
    text = wait_restart(cluster, jobid)
    assert "is requeued (preempted)" in text and "attempt 0 has saved" not in text
    assert end_training(cluster, jobid)["Restarts"] == "1"


def test_a_signal_to_one_rank_ends_all(cluster):
    """Case B19: the others would wait for it in their next collective operation."""
    cluster.write("train.py", TRAIN)
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} train.py\n", "--af-n-workers=2", "-N1")
    for rank in (0, 1):
        cluster.wait_output(jobid, rf"^\[{rank}\] attempt 0")
    ranks = launchers(cluster, r"^/usr/bin/python3 train.py $")
    second = next(pid for pid in ranks
                  if b"RANK=1" in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"))
    os.kill(parent(second), signal.SIGTERM)  # its agent
    job = cluster.wait_ended(jobid, timeout=15)
    text = cluster.output(jobid)
    assert job["ExitCode"] == "0:0", text
    for rank in (0, 1):
        assert cluster.read(f"af-runs/{jobid}/checkpoints/saved-0-{rank}") == "whole"
    told = [event for event in events(cluster, f"af-runs/{jobid}") if event["event"] == "notice"]
    assert any(event.get("worker") == 1 and "TERM" in event["reason"] for event in told), told
    assert job["Restarts"] == "0"


def test_the_site_forbids_requeues_by_default(make_cluster):
    cluster = make_cluster(slurm_conf=["JobRequeue=0"])
    hold = ["--hold", "--wrap", "true"]

    def requeue(*options):
        jobid = cluster.run("sbatch", "--parsable", *options, *hold).stdout.strip()
        return cluster.job(jobid)["Requeue"]
    assert requeue() == "0"
    assert requeue("--af-n-workers=1") == "1"
    for options in (["--no-requeue", "--af-n-workers=1"], ["--af-n-workers=1", "--no-requeue"]):
        assert requeue(*options) == "0"


def test_first_submissions_write_their_output_as_ever(cluster):
    """A file with a fixed name holds the last job's text; one of the job's own is only added to."""
    for text in ("first", "second"):
        jobid = cluster.sbatch(f"echo {text}\n", "--af-n-workers=1", "-o", "fixed.txt")
        cluster.wait_ended(jobid)
        wait_for(lambda: text in cluster.output(jobid, "fixed.txt"), 10)
    assert cluster.output(jobid, "fixed.txt") == "second\n"
    cluster.write("own-1.txt", "")
    jobid = cluster.sbatch("echo text\n", "--af-n-workers=1", "-o", "own-%j.txt")
    cluster.wait_ended(jobid)
    wait_for(lambda: cluster.output(jobid, f"own-{jobid}.txt") == "text\n", 10)


def test_srun_says_that_it_is_not_started_again(cluster):
    words = "a job of srun is not started again"
    assert words in cluster.run("srun", "--af-max-workers=2", "true").stderr
    assert words not in cluster.run("srun", "--af-n-workers=1", "true").stderr
    assert words not in cluster.run("srun", "true").stderr
