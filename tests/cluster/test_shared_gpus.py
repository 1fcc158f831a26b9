# SPDX-License-Identifier: Apache-2.0
"""What the guide's page "Shared GPUs" promises: a training goes on, and comes to the same end, while
its GPUs are taken back at random moments, with notice and without, and return.

The programs are the examples as they are (tests/programs/watched.py runs those in Python).
AF_TEST_SEED chooses other moments; AF_TEST_PYTHON, a path that the sandbox has too, another Python.
"""
import collections
import os
import random
import re
import time

import pytest

from conftest import for_one_test, running_sandbox
from elastic_helpers import Run, command_of, environment_of, kill
from launch_helpers import LAUNCH, PYTHON, alive, parent
from sandbox import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="sends signals to processes of the sandbox")

# An agent that dies young costs its node (docs/design/elastic.md): two others have GPUs enough.
SHAPE = "n1:t4*2,n2:t4*2,n3:t4*2"
WATCHED = f"{os.environ.get('AF_TEST_PYTHON', PYTHON)} /opt/af/tests/programs/watched.py"
WORKER = ["--af-cpus-per-worker=2", "--af-ram-per-worker-gb=4", "--time=20"]
SEED = int(os.environ.get("AF_TEST_SEED", "1"))


@pytest.fixture(scope="module")
def module_cluster():
    with running_sandbox(shape=SHAPE) as sandbox:
        yield sandbox


@pytest.fixture
def shared(module_cluster, request):
    with for_one_test(module_cluster, request.node.name) as sandbox:
        sandbox.run("mkdir", "quiet")
        yield sandbox


def submit(cluster, workers, program, env=None):
    script = f"#!/bin/bash\nexec {LAUNCH} --grow-interval 1 {program}\n"
    return Run(cluster, cluster.sbatch(script, f"--af-max-workers={workers}", *WORKER, env=env))


def quiet_run(cluster, program, env=None):
    """One worker that nobody disturbs, in the folder quiet, meanwhile; a Popen."""
    cluster.write("quiet/go", "")
    return cluster.popen(LAUNCH, *program.split(), cwd=f"{cluster.cwd}/quiet", env=env)


# --- taking GPUs away

def ranks_of(run):
    """{job: pid of the rank} of the satellites whose ranks run."""
    found = {}
    for job in run.joined():
        for pid in run.processes_of(job):
            if "RANK" in environment_of(pid) and alive(pid) and "af-launch" in command_of(parent(pid)):
                found[job] = pid
    return found


def take_node(run, chance):
    """An urgent job for all GPUs of a node without the anchor; satellites on it are told."""
    anchor = run.events("attempt_start")[-1]["host"]
    nodes = sorted({run.cluster.job(job).get("NodeList", "") for job in run.joined()} - {anchor, ""})
    node = chance.choice(nodes)
    job = run.cluster.sbatch("sleep 2\n", "-purgent", f"-w{node}", "--gres=gpu:2", "-c1", "--mem=1G",
                             "-ourgent-%j.txt", name="urgent.sh")
    return f"urgent job {job} on {node}"


def kill_rank(run, chance):
    job, pid = chance.choice(sorted(ranks_of(run).items()))
    kill(pid)
    return f"kill -9 of the rank of job {job}"


def kill_agent(run, chance):
    job, pid = chance.choice(sorted(ranks_of(run).items()))
    kill(parent(pid))
    return f"kill -9 of the agent of job {job}"


def both(run, chance):
    begin = time.time()
    told = take_node(run, chance) + ", " + kill_rank(run, chance)
    run.wait_event("notice", 30, after=begin)
    return told


def disturb(run, faults, size, chance, moment=2.0, trains=None):
    """The faults in random order, each at a random moment after the world was full; full at last.

    trains(run, generation): that world has begun to train; None: af.train reports the first step.
    """
    def first_step(run, generation):
        return any(event["generation"] == generation for event in run.events("first_step"))

    def full(after):
        world = run.events("world_formed")[-1:]
        there = world and world[0]["t"] > after and world[0]["size"] == size
        return world[0]["t"] if there and (trains or first_step)(run, world[0]["generation"]) else None

    def wait_full(after=0.0):
        return wait_for(lambda: full(after), 60, run.told)

    told = []
    wait_full()
    for fault in chance.sample(faults, len(faults)):
        time.sleep(chance.uniform(0, moment))
        begin = time.time()
        told.append(fault(run, chance))
        run.wait_event("world_ended", timeout=30, after=begin)
        told[-1] += f": full again after {wait_full(begin) - begin:.1f} s"
    print("\n".join(told))


def finish(run, timeout=60):
    run.cluster.write("go", "")
    job = run.cluster.wait_ended(run.job, timeout)
    assert job["ExitCode"] == "0:0", run.told()
    sizes = [event["size"] for event in run.events("world_formed")]
    print("sizes of the worlds:", *sizes)
    run.wait_gone(30)
    return sizes


# --- rows

Record = collections.namedtuple("Record", "epoch step began done rows last")


def records(folder):
    """Of every rank that there was, in order. `done` is None if it did not come behind the step."""
    found = []
    for path in sorted(folder.glob("rows-*.txt")):
        own, begun = [], None
        for line in path.read_text().splitlines():
            head, _, rows = line.partition(" | ")
            mark, *numbers_ = head.split()
            epoch, step, generation = map(int, numbers_)
            if mark == "?":
                begun = Record(epoch, step, generation, None, list(map(int, rows.split())), False)
                own.append(begun)
            else:
                assert begun == own[-1] and (epoch, step) == begun[:2]
                own[-1] = begun._replace(done=generation)
        if own:
            own[-1] = own[-1]._replace(last=True)
        found += own
    return found


def rows_of_epochs(folder):
    """{epoch: Counter of the rows that it was trained on}, from what the ranks wrote.

    The last step of a rank may be one in which it was killed. It counts if the step was completed
    with this rank: then one that lived on completed it in the same world. If not, they completed it
    in a later one, without it.
    """
    all_ = records(folder)
    completed = {}  # step: the first world in which somebody who lived on had it
    for one in all_:
        if not one.last and one.done is not None:
            completed[one.step] = min(one.done, completed.get(one.step, one.done))
    end = max(one.step for one in all_)
    epochs = collections.defaultdict(collections.Counter)
    for one in all_:
        if one.last and one.step != end:
            if (one.began if one.done is None else one.done) < completed[one.step]:
                continue
        elif one.done is None:
            raise AssertionError(f"a step without an end that was not the last: {one}")
        epochs[one.epoch].update(one.rows)
    return dict(epochs)


def assert_same_rows(folder, quiet, epochs):
    ours, theirs = rows_of_epochs(folder), rows_of_epochs(quiet)
    assert sorted(ours) == sorted(theirs) == list(range(epochs))
    for epoch in range(epochs):
        missing, more = theirs[epoch] - ours[epoch], ours[epoch] - theirs[epoch]
        assert not missing and not more, \
            f"epoch {epoch}: missing {list(missing)[:9]} ({missing.total()}), " \
            f"too often {list(more)[:9]} ({more.total()})"


# --- the tests

EPOCHS, STEPS = 10, 196  # of 100,000 rows, 512 a step


def test_the_guides_training_with_the_client(shared):
    program = f"{WATCHED} /opt/af/examples/python/elastic.py"
    env = {"EPOCHS": str(EPOCHS)}
    chance = random.Random(SEED)
    quiet = quiet_run(shared, program, {**env, "AF_MAX_WORKERS": "1"})
    paced = {"PACE": "0.02", "TAIL": str((EPOCHS - 2) * STEPS), "TAIL_PACE": "0.2"}
    run = submit(shared, 4, program, {**env, **paced})
    disturb(run, [take_node, kill_rank, kill_agent, both], 4, chance)
    sizes = finish(run)
    assert sizes[-1] == 4 and min(sizes) < 4
    out, err = quiet.communicate(timeout=60)
    assert quiet.returncode == 0, out + err

    # Every epoch is done once: in the journal, in the output, and in what was read for it.
    reports = [event["epoch"] for event in run.events("report")]
    assert reports == list(range(1, EPOCHS + 1))
    text = run.output()
    assert [int(n) for n in re.findall(r"^\[\d\] af: epoch (\d+)", text, re.MULTILINE)] == reports
    assert_same_rows(shared.host_path("."), shared.host_path("quiet"), EPOCHS)
    assert run.events("report")[-1]["step"] == EPOCHS * STEPS
    loss, = re.findall(r"FINAL ([\d.]+)", text)
    alone, = re.findall(r"FINAL ([\d.]+)", out)
    difference = abs(float(loss) / float(alone) - 1)
    print(f"final loss {loss}, alone {alone}: {difference:.2e} relative")
    assert difference < 1e-3


DIGITS_EPOCHS = 16
DIGITS = f"/opt/af/build/examples/digits --data /opt/af/examples/data/digits.h5 --epochs {DIGITS_EPOCHS}"


def test_the_example_in_cpp(shared):
    quiet = quiet_run(shared, DIGITS)
    run = submit(shared, 4, f"{DIGITS} --work-ms 250")
    disturb(run, [take_node, kill_rank], 4, random.Random(SEED + 1), moment=1.0)
    sizes = finish(run)
    assert sizes[-1] == 4 and min(sizes) < 4
    out, err = quiet.communicate(timeout=60)
    assert quiet.returncode == 0, out + err
    assert [event["epoch"] for event in run.events("report")] == list(range(DIGITS_EPOCHS))
    line = re.compile(r"^\[0\] epoch +(\d+)  loss ([\d.]+)  test accuracy ([\d.]+)", re.MULTILINE)
    ours, alone = line.findall(run.output()), line.findall(out)
    assert [int(one[0]) for one in ours] == [int(one[0]) for one in alone] == list(range(DIGITS_EPOCHS))
    print("epoch, loss, accuracy: here, alone", *zip(ours, alone), sep="\n")
    for (epoch, loss, accuracy), (_, loss_alone, accuracy_alone) in zip(ours, alone):
        # The share of a rank that was killed comes at the end of its epoch. There are few images and
        # few steps, and Adam lets small differences grow: an epoch twice or not at all is outside.
        assert abs(float(loss) - float(loss_alone)) < 0.1 * float(loss_alone) + 0.002, epoch
        assert abs(float(accuracy) - float(accuracy_alone)) < 0.02, epoch


PLAIN_EPOCHS = 14


def has_done_an_epoch(run, generation):
    return re.search("^epoch", run.logs().get(f"attempt-0/gen-{generation}/rank-0", ""), re.MULTILINE)


def by_generation(logs):
    """[(generation, text)] of the first ranks."""
    found = {int(re.search(r"gen-(\d+)", name)[1]): text for name, text in logs.items()
             if name.endswith("/rank-0")}
    return sorted(found.items())


def test_a_plain_script(shared):
    """Restarted from its own checkpoint each time; af says so."""
    program = f"{WATCHED} /opt/af/examples/python/data_parallel.py --events 20000 --epochs {PLAIN_EPOCHS}"
    run = submit(shared, 3, program, {"PACE": "0.05"})
    disturb(run, [take_node, kill_rank], 3, random.Random(SEED + 2), trains=has_done_an_epoch)
    sizes = finish(run, 90)
    assert sizes[-1] == 3 and min(sizes) < 3

    done = -1  # the last epoch that is in the checkpoint
    for generation, text in by_generation(run.logs()):
        epochs = [int(n) for n in re.findall(r"^epoch (\d+) ", text, re.MULTILINE)]
        resumed = re.search(r"^resumed after epoch (\d+)", text, re.MULTILINE)
        if not resumed and not epochs:
            continue  # was ended before it had begun
        start = int(resumed[1]) if resumed else -1
        # The line comes just before the checkpoint: one that was stopped between is done again.
        assert start in (done, done - 1), (generation, start, done)
        assert epochs == list(range(start + 1, start + 1 + len(epochs))), generation
        done = start + len(epochs)
    assert done == PLAIN_EPOCHS - 1
    said = "\n".join(run.said())
    assert re.search(r"was killed: starting again with 2 ranks instead of 3|"
                     r"was killed: starting again with 3 ranks", said), said
    assert re.search(r"is being taken back: starting again with [12] ranks? instead of 3", said), said
    assert "more to train with: starting again with 3 ranks" in said
