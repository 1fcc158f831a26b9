# SPDX-License-Identifier: Apache-2.0
"""The batch script's supervisor and the ranks' shield in a cluster with the plugin (B14, B15)."""
import re
import time

import pytest

from conftest import wait_for
from launch_helpers import LAUNCH, PYTHON, has_cgroup_freezer, parent, processes_of_run

PROCTRACKS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(not has_cgroup_freezer(),
                                                    reason="no writable cgroup v1 freezer here")),
    "linuxproc",
]
AF = ("--af-n-workers=1",)

# Says when its handler ran, and leaves when told to.
TRAIN = """\
import os, signal, sys, time
def note(number, frame):
    os.write(1, f"{signal.Signals(number).name} at {time.time():.3f}\\n".encode())
    if number == signal.SIGTERM and "--leave" in sys.argv:
        time.sleep(2)
        os.write(1, b"saved\\n")
        sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
print("ready", os.getpid(), flush=True)
while not os.path.exists("stop"):
    time.sleep(0.05)
"""

# Trains on, with workers that are forked (Linux's default), and counts what reaches them.
DATALOADER = """\
import os, signal, torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.tensor(float(i))
def note(number, frame):
    os.write(1, f"{signal.Signals(number).name} in {os.getpid()}\\n".encode())
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
loader = DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True)
main = os.getpid()
print(f"rank {os.environ['RANK']} main {main}", flush=True)
epoch = 0
while not os.path.exists("stop"):
    total = sum(float(batch.sum()) for batch in loader)
    assert total == 2016.0, total
    if epoch == 0: print(f"rank {os.environ['RANK']} ready", flush=True)
    epoch += 1
print(f"rank {os.environ['RANK']} done", flush=True)
"""


@pytest.fixture(params=PROCTRACKS)
def tracked(request, make_cluster):
    return make_cluster(proctrack=request.param)


def handler_times(cluster, jobid, name):
    return [float(t) for t in re.findall(rf"{name} at ([0-9.]+)", cluster.output(jobid))]


@pytest.mark.parametrize("script", ["program", "trap", "pipe", "af-launch"])
def test_term_to_the_batch_script_reaches_the_programs_handler_within_a_second(tracked, script):
    tracked.write("train.py", TRAIN)
    line = {"program": f"{PYTHON} train.py", "trap": f"{PYTHON} train.py",
            "pipe": f"(cd . && {PYTHON} train.py) | cat",
            "af-launch": f"{LAUNCH} {PYTHON} train.py"}[script]
    trap = "trap 'echo TRAP' TERM\n" if script == "trap" else ""
    jobid = tracked.sbatch(f"{trap}{line}\necho code $?\n", *AF)
    tracked.wait_output(jobid, "ready")
    sent = time.time()
    tracked.run("scancel", "--signal=TERM", "--batch", str(jobid))
    wait_for(lambda: handler_times(tracked, jobid, "SIGTERM"), 10,
             lambda: f"the handler: {tracked.output(jobid)}")
    assert handler_times(tracked, jobid, "SIGTERM")[0] - sent <= 1.0
    tracked.write("stop", "")
    tracked.wait_output(jobid, "code 0")
    assert tracked.wait_ended(jobid)["ExitCode"] == "0:0"
    assert len(handler_times(tracked, jobid, "SIGTERM")) == 1, tracked.output(jobid)
    assert ("TRAP" in tracked.output(jobid)) == (script == "trap")


def test_signal_to_the_whole_job_is_not_doubled(tracked):
    """--full: slurmstepd signals the script's process group, the program is in it."""
    tracked.write("train.py", TRAIN)
    jobid = tracked.sbatch(f"trap : USR1\n{PYTHON} train.py\necho code $?\n", *AF)
    tracked.wait_output(jobid, "ready")
    tracked.run("scancel", "--signal=USR1", "--full", str(jobid))
    wait_for(lambda: handler_times(tracked, jobid, "SIGUSR1"), 10)
    time.sleep(0.5)  # a second one would come now: what must not happen cannot be awaited
    tracked.write("stop", "")
    tracked.wait_ended(jobid)
    assert len(handler_times(tracked, jobid, "SIGUSR1")) == 1, tracked.output(jobid)


def test_scancel_leaves_the_program_its_kill_wait(tracked):
    """Of the sandbox's 5 s the program needs 2; without the supervisor it has 0.1 s (cgroup)."""
    tracked.write("train.py", TRAIN)
    jobid = tracked.sbatch(f"{PYTHON} train.py --leave\n", *AF)
    tracked.wait_output(jobid, "ready")
    tracked.run("scancel", str(jobid))
    tracked.wait_ended(jobid)
    tracked.wait_output(jobid, "saved", timeout=8)
    wait_for(lambda: not processes_of_run(tracked, jobid), 10, "no process of the run")


@pytest.mark.parametrize("proctrack", PROCTRACKS)
def test_a_long_save_completes_within_kill_wait(make_cluster, proctrack):
    """Case B16: KillWait less 5 s, with the program in the foreground of a bash script."""
    cluster = make_cluster(proctrack=proctrack, slurm_conf=["KillWait=15"])
    cluster.write("save.py", """\
import os, signal, sys, time
def save(number, frame):
    with open(sys.argv[1] + ".part", "w") as file:
        for part in range(10):
            file.write(f"{part}\\n")
            time.sleep(1)
    os.rename(sys.argv[1] + ".part", sys.argv[1])
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
""")
    lines = {"plain": f"{PYTHON} save.py plain", "launched": f"{LAUNCH} {PYTHON} save.py launched"}
    jobs = {name: cluster.sbatch(f"echo begin\n{line}\necho end\n", *AF, name=f"{name}.sh")
            for name, line in lines.items()}
    for jobid in jobs.values():
        cluster.wait_output(jobid, "ready")
    cluster.run("scancel", *map(str, jobs.values()))
    for name, jobid in jobs.items():
        assert cluster.wait_ended(jobid)["JobState"] == "CANCELLED"
        wait_for(lambda: cluster.host_path(name).exists(), 20, lambda: cluster.output(jobid))
        assert cluster.read(name).split() == [str(part) for part in range(10)]
    assert re.search(r"notice: cancelled, the job ends by \S+ \(in 1[3-5] s\)",
                     cluster.output(jobs["launched"])), cluster.output(jobs["launched"])


def test_nobody_catches_and_the_job_ends_at_once(tracked):
    jobid = tracked.sbatch("echo ready\nsleep 100\necho never\n", *AF)
    tracked.wait_output(jobid, "ready")
    tracked.run("scancel", "--signal=TERM", "--batch", str(jobid))
    assert tracked.wait_ended(jobid, timeout=10)["ExitCode"] == "0:15"
    assert "never" not in tracked.output(jobid)


def test_exit_code_and_signal_of_the_script_are_the_jobs(cluster):
    first = cluster.sbatch("exit 7\n", *AF)
    second = cluster.sbatch("kill -USR2 $$\n", *AF)
    assert cluster.wait_ended(first)["ExitCode"] == "7:0"
    assert cluster.wait_ended(second)["ExitCode"] == "0:12"


def test_only_af_jobs_have_a_supervisor(cluster):
    show = "echo parent $(cat /proc/$PPID/comm) task $SLURM_TASK_PID me $$ $AF_SUPERVISED\n"
    ours, plain = cluster.sbatch(show, *AF), cluster.sbatch(show)
    cluster.wait_ended(ours)
    cluster.wait_ended(plain)
    pids = re.search(r"parent af-supervisor task (\d+) me (\d+) 1", cluster.output(ours))
    assert pids and pids[1] == pids[2], cluster.output(ours)
    pids = re.search(r"parent slurmstepd task (\d+) me (\d+)\s*$", cluster.output(plain))
    assert pids and pids[1] == pids[2], cluster.output(plain)


def test_script_sees_an_ordinary_process(cluster):
    """Mask, dispositions, group and open files are what a plain batch script has."""
    show = ("grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; ls /proc/self/fd | wc -l; ulimit -c\n"
            "[ $(ps -o pgid= $$) = $(ps -o pgid= $PPID) ] || echo group differs\n")
    ours, plain = cluster.sbatch(show, *AF), cluster.sbatch(show)
    cluster.wait_ended(ours)
    cluster.wait_ended(plain)
    # The plain script leads its group; ours is in the group that slurmstepd knows.
    assert cluster.output(ours) == cluster.output(plain).replace("group differs\n", "")


@pytest.mark.parametrize("way", ["batch", "srun"])
def test_data_loader_workers_get_nothing_and_training_goes_on(tracked, way):
    tracked.write("loader.py", DATALOADER)
    line = f"{LAUNCH} {PYTHON} loader.py"
    if way == "srun":
        jobid = tracked.sbatch(f"exec srun {line}", "--af-n-workers=2", "-N2")
    else:
        jobid = tracked.sbatch(line, "--af-n-workers=2", "-N2")
    for rank in range(2):
        tracked.wait_output(jobid, f"rank {rank} ready", timeout=90)
    mains = re.findall(r"main (\d+)", tracked.output(jobid))
    # To the steps: slurmstepd signals the ranks' processes, with linuxproc every one of them.
    for name in ("USR1", "USR2", "TERM"):
        tracked.run("scancel", f"--signal={name}", str(jobid))
        wait_for(lambda: len(re.findall(f"SIG{name} in", tracked.output(jobid))) >= 2, 20,
                 lambda: f"{name} in both ranks: {tracked.output(jobid)}")
    time.sleep(1)  # what must not happen would happen now
    tracked.write("stop", "")
    assert tracked.wait_ended(jobid)["ExitCode"] == "0:0", tracked.output(jobid)
    for name in ("USR1", "USR2", "TERM"):
        got = re.findall(f"SIG{name} in (\\d+)", tracked.output(jobid))
        assert sorted(got) == sorted(mains), tracked.output(jobid)
    for rank in range(2):
        assert f"rank {rank} done" in tracked.output(jobid)
    assert "exited unexpectedly" not in tracked.output(jobid)
