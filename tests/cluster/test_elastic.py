# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on a real Slurm: they grow, give GPUs back when told, lose them without, and end
without leaving anything. The program is tests/programs/elastic_loop.py, but for the plain one."""
from concurrent import futures
import json
import os
import re
import signal
import time

import pytest

from conftest import for_one_test, running_sandbox
from elastic_helpers import LOOP, SLACK, WORKER, Run, command_of, kill, start, take_gpu
from launch_helpers import LAUNCH, PYTHON, parent
from sandbox import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sends signals to processes of the sandbox")

SHAPE = "n1:t4*2,n2:t4*2"  # full with an anchor and three satellites
MEASURED = {}


def measured(name, seconds):
    """Kept for the list at the module's end (pytest -s)."""
    MEASURED.setdefault(name, []).append(round(seconds, 2))
    return seconds


def in_parallel(function, arguments):
    """On a cluster each: most of the time they wait for Slurm."""
    with futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(function, *words) for words in arguments]:
            done.result()


@pytest.fixture(scope="module")
def module_cluster():
    try:
        with running_sandbox(shape=SHAPE) as sandbox:
            yield sandbox
    finally:
        print("\nmeasured:", json.dumps(MEASURED, indent=1))


@pytest.fixture
def elastic(module_cluster, request):
    """The module's cluster with an empty queue, in a directory of the test's own."""
    with for_one_test(module_cluster, request.node.name) as sandbox:
        yield sandbox


# --- GPUs that are taken back and return

def give_and_take(cluster, run):
    """4, an urgent job, 3, 4 again; how long it took."""
    run.wait_world(4)
    _, node = run.other_node()
    urgent, submitted, ran = take_gpu(cluster, node)
    notice = run.wait_event("notice", after=submitted)
    world, first = run.wait_world(3, after=submitted)
    back, _ = run.wait_world(4, timeout=30, after=world["t"])
    return {"told": notice["t"] - submitted, "urgent runs": ran - submitted, "notice": notice,
            "world": world, "first step": first["t"] - world["t"], "urgent": urgent, "back": back}


def test_a_gpu_is_taken_back_and_returns(elastic):
    run = start(elastic, 4, LOOP, 1000000, "--save-seconds=0.5")
    what = give_and_take(elastic, run)
    left = run.wait_event("worker_lost", after=what["notice"]["t"])
    free = measured("free after the notice", left["t"] - what["notice"]["t"])
    assert measured("told", what["told"]) < 2 + SLACK
    assert free < 3 + 0.5 + SLACK
    assert measured("urgent runs", what["urgent runs"]) < 5 + SLACK
    measured("3 ranks: first step", what["first step"])
    assert left["how"] == "taken back"
    assert elastic.wait_ended(what["urgent"])["JobState"] == "COMPLETED"
    assert run.stop()["ExitCode"] == "0:0", run.told()
    run.check_steps()
    said = "\n".join(run.said())
    worker = left["worker"]
    node = left["host"]
    assert f"worker {worker} on {node} is being taken back" in said
    assert f"worker {worker} on {node} was taken back: the training goes on with 3 ranks instead of 4" in said
    assert "GPUs have become free: the training goes on with 4 ranks instead of 3" in said
    run.wait_gone()


def test_other_ways_of_preemption(make_cluster):
    def one(mode, grace):
        spare = f"PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode={mode} {grace} State=UP"
        cluster = make_cluster(shape=SHAPE, slurm_conf=[spare])
        run = start(cluster, 4)
        what = give_and_take(cluster, run)
        assert measured(f"told, {mode} {grace}", what["told"]) < 2 + SLACK
        assert measured(f"urgent runs, {mode} {grace}", what["urgent runs"]) < 5 + SLACK
        measured("3 ranks: first step", what["first step"])
        assert run.stop()["ExitCode"] == "0:0", run.told()
        run.check_steps()
        run.wait_gone()

    sites = [("CANCEL", "GraceTime=3"), ("REQUEUE", ""), ("CANCEL", "")]
    in_parallel(one, sites)


# --- GPUs that are lost

def lose(elastic, run, what, fault, limit, after_world=4):
    """fault() returns when it was; within `limit` s a world of one less has taken a step."""
    begin = fault()
    lost = run.wait_event("world_ended", timeout=20, after=begin)
    world, first = run.wait_world(after_world - 1, after=begin)
    measured(f"{what}: acted on", lost["t"] - begin)
    measured(f"{what}: first step", first["t"] - begin)
    assert lost["t"] - begin < limit, (what, run.told())
    return world


def test_losses_without_notice(elastic):
    run = start(elastic, 4)
    world, _ = run.wait_world(4)
    job, _ = run.other_node()
    world = lose(elastic, run, "kill -9 of an agent", lambda: kill(run.agent_of(job)), 1 + SLACK)
    world, _ = run.wait_world(4, timeout=40, after=world["t"])

    job, _ = run.other_node()
    world = lose(elastic, run, "kill -9 of a rank", lambda: kill(run.rank_of(job)), 1 + SLACK)
    world, _ = run.wait_world(4, timeout=40, after=world["t"])

    job, _ = run.other_node()
    everything = sorted(run.processes_of(job), key=lambda pid: "slurmstepd" not in command_of(pid))
    world = lose(elastic, run, "kill -9 of a whole job", lambda: kill(*everything), 1 + SLACK)
    # Slurm takes a while to see that, and holds the GPU as long.

    assert run.stop()["ExitCode"] == "0:0", run.told()
    run.check_steps()
    run.wait_gone()


def test_what_only_stands_still(elastic):
    run = start(elastic, 4)
    world, _ = run.wait_world(4)
    job, _ = run.other_node()
    rank = run.rank_of(job)
    world = lose(elastic, run, "SIGSTOP of a rank", lambda: kill(rank, number=signal.SIGSTOP), 4 + SLACK)
    world, _ = run.wait_world(4, timeout=40, after=world["t"])

    job, _ = run.other_node()
    agent = run.agent_of(job)
    world = lose(elastic, run, "SIGSTOP of an agent", lambda: kill(agent, number=signal.SIGSTOP), 4 + SLACK)
    # It comes back, finds that the run goes on without it, and leaves without harm.
    kill(agent, number=signal.SIGCONT)
    elastic.wait_ended(job, timeout=20)
    world, _ = run.wait_world(4, timeout=40, after=world["t"])

    # A node without the anchor is cut off, with all of the run that is on it.
    job, node = run.other_node()
    here = [other for other in run.joined()
            if elastic.job(other).get("NodeList") == node]

    def cut():
        begin = time.time()
        elastic.run("ip", "link", "set", f"v-{node}", "down", root=True)
        return begin
    try:
        world = lose(elastic, run, "a network cut", cut, 4 + SLACK, 4 - len(here) + 1)
        for other in here:
            # What is left then is Slurm's own, which cannot reach its controller.
            wait_for(lambda: not any(re.match(rf"{PYTHON}|{LAUNCH}", command)
                                     for command in run.processes_of(other).values()), 25,
                     lambda: f"job {other} has ended itself: {run.processes_of(other)}")
    finally:
        elastic.run("ip", "link", "set", f"v-{node}", "up", root=True)
    world, _ = run.wait_world(4, timeout=60, after=world["t"])
    assert run.stop()["ExitCode"] == "0:0", run.told()
    run.check_steps()
    run.wait_gone()


# --- the end, however it comes

def agent_and_keeper(run):
    agent = run.agent_of(run.job)
    return agent, parent(agent)


def front_of(run):
    (front,) = [pid for pid, command in run.processes_of(run.job).items()
                if command.startswith(LAUNCH) and "--agent" not in command]
    return front


def over_time(run):
    """Slurm looks at the limits every 30 s."""
    run.cluster.run("scontrol", "update", f"JobId={run.job}", "EndTime=now", root=True)
    run.wait_event("notice", timeout=40, reason="time limit", all=True)


# What ends a run, by the cluster that it is done on, one after the other.
ENDS = [{
    "the program's end": lambda run: run.cluster.write("stop", ""),
    "the program's failure": lambda run: run.cluster.write("fail-1", ""),
    "scancel": lambda run: run.cluster.run("scancel", str(run.job)),
}, {
    "kill -9 of the agent": lambda run: kill(agent_and_keeper(run)[0]),
    "kill -9 of the keeper": lambda run: kill(agent_and_keeper(run)[1]),
    "kill -9 of both": lambda run: kill(*reversed(agent_and_keeper(run))),
    # Nobody is left to cancel what is pending: that starts, and leaves at once.
    "kill -9 of both and the front": lambda run: kill(front_of(run), *reversed(agent_and_keeper(run))),
}, {
    "the time limit": over_time,
}]


def end_one_way(cluster, what, end):
    run = start(cluster, 3, options=["--no-requeue"])
    run.wait_world(2)
    wait_for(lambda: len(run.satellites("PENDING")) == 1 and len(run.satellites("RUNNING")) == 1, 10,
             lambda: f"one runs, one waits: {run.told()}")
    # Others of the same person, two with a name that is nearly the satellites'.
    name = run.events("satellite_submitted")[0]["name"]
    others = [cluster.sbatch("sleep 1000", "--hold", f"--job-name={other}", name="other.sh")
              for other in (f"{name}0", name[:-1], "train")]
    end(run)
    begin = time.monotonic()
    run.wait_gone(10 + SLACK)
    measured(f"none left after {what}", time.monotonic() - begin)
    job = cluster.wait_ended(run.job, timeout=30)
    assert (job["JobState"] == "COMPLETED") == (what == "the program's end"), job["JobState"]
    assert [cluster.state(other) for other in others] == ["PENDING"] * 3


def test_nothing_stays_behind(make_cluster):
    """One satellite runs and one waits each time; the person's other jobs are left alone."""
    def all_ways(ways):
        cluster = make_cluster(shape="n1:t4*2")
        for number, (what, end) in enumerate(ways.items()):
            cluster.cwd = f"/work/users/ada/{number}"
            cluster.run("mkdir", "-p", cluster.cwd, cwd="/work/users/ada")
            try:
                end_one_way(cluster, what, end)
            except AssertionError as error:
                raise AssertionError(f"after {what}: {error}") from error

    in_parallel(all_ways, [(ways,) for ways in ENDS])


def test_the_anchors_node_is_lost(make_cluster):
    """All that is af's or Slurm's there is killed at once: nobody can cancel anything."""
    cluster = make_cluster(shape="n1:t4*1,n2:t4*2")
    run = start(cluster, 4, options=["-wn1", "--no-requeue"])
    run.wait_world(3)
    pending = wait_for(lambda: list(run.satellites("PENDING")), 10, "one waits")
    running = list(run.satellites("RUNNING"))
    slurmd = int(cluster.run("cat", "/run/slurmd.pid", root=True, node="n1").stdout)
    (daemon,) = [pid for pid in cluster.processes()
                 if f"\t{slurmd}\n" in open(f"/proc/{pid}/status").read().split("NSpid:")[1]]
    everything = sorted(run.processes_of(run.job), key=lambda pid: "slurmstepd" not in command_of(pid))
    begin = kill(daemon, *everything)
    for job in running:
        cluster.wait_ended(job, timeout=15 + SLACK)
    measured("anchor's node lost: running ones have left", time.time() - begin)
    for job in pending:
        began = cluster.wait_running(job)
        assert began["Deadline"] != "Unknown"
        begin = time.monotonic()
        ended = cluster.wait_ended(job, timeout=30 + SLACK)
        measured("anchor's node lost: one that starts has left", time.monotonic() - begin)
        assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0")
    assert not run.satellites()


# --- Slurm's controller

def test_the_controller_is_away(elastic):
    # The anchor's job is on Slurm's disk before there are satellites; those are not.
    wait = "until [[ -e go ]]; do sleep 0.05; done\n"
    launch = f"exec {LAUNCH} --grow-interval=1 {PYTHON} {LOOP} 1000000\n"
    run = Run(elastic, elastic.sbatch(wait + launch, "--af-max-workers=4", *WORKER))
    elastic.wait_running(run.job)
    begin = time.time()
    others = [elastic.sbatch("sleep 1000", "--hold", name="other.sh")]

    def saved():
        done = elastic.run("stat", "-c", "%.6Y", "/run/slurmctld/job_state", root=True, check=False)
        return done.returncode == 0 and float(done.stdout) > begin
    wait_for(saved, 20, "Slurm has saved its state")
    elastic.write("go", "")
    submitted = run.wait_event("satellite_submitted")
    (controller,) = [pid for pid in elastic.processes()
                     if command_of(pid).split(" ")[0].endswith("slurmctld")]
    away = kill(controller)
    assert away - submitted["t"] < 1 + SLACK
    # For a while nothing is to be waited for but time.
    time.sleep(float(os.environ.get("AF_TEST_CONTROLLER_AWAY", "10")))
    elastic.run("slurmctld", root=True)
    back = time.time()
    wait_for(lambda: "UP" in elastic.run("scontrol", "ping", check=False).stdout, 20, "it is back")
    # It may get the number of a satellite that Slurm has lost.
    others.append(elastic.sbatch("sleep 1000", "--hold", name="other.sh"))
    run.wait_world(4, timeout=90, after=away)
    measured("4 again after the controller's return", time.time() - back)
    assert run.stop()["ExitCode"] == "0:0", run.told()
    run.check_steps()
    assert measured("longest pause with the controller away", run.longest_pause(away)) < 1 + SLACK
    run.wait_gone()
    assert [elastic.state(other) for other in others] == ["PENDING", "PENDING"]


# --- without satellites, without a front, without a client

def test_satellites_are_not_allowed(make_cluster):
    spare = "PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE AllowGroups=root State=UP"
    cluster = make_cluster(shape=SHAPE, slurm_conf=[spare])
    run = start(cluster, 4, LOOP, 60)
    assert cluster.wait_ended(run.job, timeout=30)["ExitCode"] == "0:0", run.told()
    assert len(run.events("satellite_refused")) == 1
    refused = [line for line in run.said() if "no further GPU" in line]
    assert len(refused) == 1, run.said()
    assert "group not permitted" in refused[0] and "the run goes on" in refused[0]
    assert run.check_steps(60) == 60


def test_srun_without_a_front(elastic):
    command = elastic.popen("srun", "--af-max-workers=3", "--af-cpus-per-worker=2",
                            "--af-ram-per-worker-gb=4", "--time=10", LAUNCH, "--grow-interval=1", PYTHON,
                            LOOP, "1000000")
    job = wait_for(lambda: elastic.run("squeue", "-h", "--me", "-pkept", "-o%A").stdout.strip(), 10)
    run = Run(elastic, int(job))
    run.wait_world(3)
    elastic.write("stop", "")
    out, err = command.communicate(timeout=30)
    assert command.returncode == 0, out[-2000:] + err[-2000:]
    run.check_steps()
    run.wait_gone()


def test_a_plain_program(elastic):
    """GPUs come and are taken: each time it is started again, and goes on behind its checkpoint."""
    run = start(elastic, 4, "/opt/af/tests/programs/plain_epochs.py", 1.5)
    world = run.wait_event("world_formed", timeout=40, size=4)
    run.wait_event("checkpoint", after=world["t"])
    _, node = run.other_node()
    # Longer than the three need to start and to complete an epoch.
    urgent, submitted, ran = take_gpu(elastic, node, seconds=5)
    measured("urgent runs, plain program", ran - submitted)
    smaller = run.wait_event("world_formed", after=submitted, size=3)
    again = run.wait_event("world_formed", timeout=60, after=smaller["t"], size=4)
    run.wait_event("checkpoint", after=again["t"])
    assert run.stop()["ExitCode"] == "0:0", run.told()
    run.wait_gone()
    assert re.search(r"is being taken back: starting again with 3 ranks instead of 4; what it has done "
                     r"since its last checkpoint \(about \d+ s\) is done again", run.output())
    epochs = json.loads(elastic.read(f"{run.directory}/checkpoints/epochs.json"))["epochs"]
    assert [one["epoch"] for one in epochs] == list(range(len(epochs)))
    assert {3, 4} <= {one["size"] for one in epochs}
    # Nothing that a rank of any generation has written is missing.
    logs = run.logs()
    for world in run.events("world_formed"):
        for rank in range(world["size"]):
            text = logs[f"attempt-0/gen-{world['generation']}/rank-{rank}"]
            assert f"rank={rank}/{world['size']}" in text
    ended = [int(epoch) for text in logs.values()
             for epoch in re.findall(r"^end epoch=(\d+) rank=0/", text, re.M)]
    assert sorted(set(ended)) == list(range(len(epochs)))
