# SPDX-License-Identifier: Apache-2.0
"""A training whose ranks are killed, taken, added and saved: real processes on the native library,
with a stand-in for the agents. Every row of every epoch is trained on exactly once."""

import os
import pathlib
import random
import re
import time

import pytest
import rows
from fake_agent import Agent, Nursery, python

PROGRAM = pathlib.Path(__file__).with_name("programs") / "rows.py"
ROWS, EPOCHS = 1000, 4


_nursery = []


@pytest.fixture(scope="module", autouse=True)
def nursery():
    _nursery.append(Nursery())
    yield
    _nursery.pop().close()


def agent_for(tmp_path, **environment):
    command = [python(), str(PROGRAM)]
    return Agent(command, tmp_path, environment=environment, nursery=_nursery[0])


def check(agent, directory, killed=(), epochs=EPOCHS, count=ROWS):
    """All ended well, in step, with every row once; returns the final loss."""
    exits = agent.wait_end()
    logs = "\n".join(f"--- {n}\n{agent.log(n)}" for n in agent.workers)
    for number, code in exits.items():
        assert code == (-9 if number in killed else 0), f"worker {number}: {code}\n{logs}"
    wrong = rows.faults(directory, count, epochs, killed)
    assert not wrong, f"{wrong}\nworlds {agent.worlds}\n{logs}"
    ended = [f for f in (rows.finals(agent.log(n)) for n in agent.workers) if f]
    assert ended, logs
    for final in ended:
        assert final == pytest.approx(ended[0], rel=1e-5), logs
    return ended[0]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """(final loss, sum of parameters, learning rate, steps) of a run without incidents."""
    directory = tmp_path_factory.mktemp("quiet")
    with agent_for(directory) as agent:
        agent.start(1)
        return check(agent, directory)


def test_a_training_is_the_same_at_every_world_size(tmp_path, quiet):
    with agent_for(tmp_path, UNEQUAL_WEIGHTS="1") as agent:
        agent.start(3)
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert len(agent.worlds) == 1
        behind = [n for n in agent.workers if "BEHIND FIT" in agent.log(n)]
        assert behind == [0]
        assert sorted(n for n, m in agent.events if m["op"] == "finished") == [0, 1, 2]
        assert len(agent.heard("checkpoint", 0)) == EPOCHS
        assert [m["step"] for m in agent.heard("report", 0)] == [16, 32, 48, 64]
        assert agent.heard("options", 0) == [{"op": "options", "max_failures": 0}]


@pytest.mark.parametrize(
    "kills",
    [
        "2:20:before",
        "2:20:after",
        "2:20:middle",
        "1:16:after",  # the last step of an epoch: the others are in the report
        "2:17:before",  # the first step of an epoch
        "2:32:middle",
        "2:64:after",  # the last step of all
        "2:1:before",  # before the first step of all
        "2:1:middle",
        "0:20:before",  # rank 0
        "1:20:before 2:20:middle",
        "1:20:before 2:21:before",  # the second while the first loss is being dealt with
        "1:9:after 2:40:middle",
    ],
)
def test_ranks_are_killed(tmp_path, quiet, kills):
    killed = {int(entry.split(":")[0]) for entry in kills.split()}
    with agent_for(tmp_path, AF_KILL=kills) as agent:
        agent.start(3)
        final = check(agent, tmp_path, killed)
        assert len(agent.worlds[-1][1]) == 3 - len(killed)
        assert final[0] == pytest.approx(quiet[0], rel=0.05)
        assert final[2] == pytest.approx(quiet[2], rel=0.01)  # a step more or less


@pytest.mark.parametrize("failures", ["0:20", "1:20", "1:16 2:32", "1:20 0:21 2:21", "2:64"])
def test_a_reduction_completes_on_some_ranks_only(tmp_path, quiet, failures):
    with agent_for(tmp_path, AF_FAIL=failures) as agent:
        agent.start(3)
        # Nobody is lost, so all is exactly as in a quiet run.
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert len(agent.worlds) == 1 + len({f.split(":")[1] for f in failures.split()})


def test_a_rank_that_lacks_a_step_gets_it_while_another_dies(tmp_path, quiet):
    with agent_for(tmp_path, AF_FAIL="1:20", AF_KILL="2:21:before") as agent:
        agent.start(3)
        check(agent, tmp_path, {2})


def wait_held(agent, directory):
    """Until the worker that HOLD names waits before its step."""
    worker, step = agent.environment["HOLD"].split(":")
    path = directory / f"rows-{worker}.txt"
    held = lambda: path.exists() and re.search(rf"^\? \d+ {step} ", path.read_text(), re.M)
    agent.wait(held, f"step {step}")


def go_when(agent, directory, condition, what):
    """Lets the worker that HOLD holds go on."""
    wait_held(agent, directory)
    agent.wait(condition, what)
    (directory / "go").touch()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_rank_joins_behind_a_checkpoint(tmp_path, quiet, workers):
    with agent_for(tmp_path, HOLD="0:20", LOADER_WORKERS=workers) as agent:
        agent.start(2)
        agent.wait(lambda: agent.heard("checkpoint"), "a checkpoint")
        new = agent.join()
        go_when(agent, tmp_path, lambda: agent.workers[new].arrived, "its arrival")
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert [len(w[1]) for w in agent.worlds] == [2, 3]
        # In the middle of epoch 1 the world is asked to grow; it does so behind it.
        sizes = {line[2]: set() for line in rows.read(tmp_path)}
        for line in rows.read(tmp_path):
            sizes[line[2]].add(line[4])
        assert sizes == {0: {2}, 1: {2}, 2: {3}, 3: {3}}


def test_a_rank_is_killed_in_mid_epoch_and_another_joins(tmp_path, quiet):
    with agent_for(tmp_path, AF_KILL="2:24:middle", HOLD="0:26") as agent:
        agent.start(3)
        agent.wait(lambda: 2 in agent.exits, "the death of worker 2")
        new = agent.join()
        go_when(agent, tmp_path, lambda: agent.workers[new].arrived, "its arrival")
        final = check(agent, tmp_path, {2})
        assert [w[1] for w in agent.worlds] == [[0, 1, 2], [0, 1], [0, 1, 3]]
        assert final[0] == pytest.approx(quiet[0], rel=0.05)


@pytest.mark.parametrize(
    "kill, hold",
    [
        ("2:24:middle", "0:24"),  # in the middle of a step: it has no rows of that one
        ("2:32:after", "2:32"),  # the others are in the report of an epoch
    ],
)
def test_a_rank_comes_in_when_another_is_lost(tmp_path, quiet, kill, hold):
    with agent_for(tmp_path, AF_KILL=kill, HOLD=hold) as agent:
        agent.start(3)
        agent.wait(lambda: agent.heard("checkpoint"), "a checkpoint")
        new = agent.join()
        go_when(agent, tmp_path, lambda: agent.workers[new].arrived, "its arrival")
        final = check(agent, tmp_path, {2})
        assert [w[1] for w in agent.worlds] == [[0, 1, 2], [0, 1, 3]]
        assert final[0] == pytest.approx(quiet[0], rel=0.05)
        assert [m["step"] for m in agent.heard("report", 0)] == [16, 32, 48, 64]


def test_a_rank_leaves_with_notice(tmp_path, quiet):
    with agent_for(tmp_path, HOLD="0:20") as agent:
        agent.start(3)
        wait_held(agent, tmp_path)
        agent.take(1)
        (tmp_path / "go").touch()
        # Behind a step, by agreement: nothing is lost, so all is as in a quiet run.
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert [w[1] for w in agent.worlds] == [[0, 1, 2], [0, 2]]


def test_all_but_one_leave_and_come_back(tmp_path, quiet):
    with agent_for(tmp_path, HOLD="0:30") as agent:
        agent.start(3)
        agent.wait(lambda: agent.heard("first_step", 0), "a first step")
        agent.take(1)
        agent.wait_world(2)
        agent.take(2)
        agent.wait_world(1)
        new = [agent.join(), agent.join()]
        arrived = lambda: all(agent.workers[n].arrived for n in new)  # noqa: E731
        go_when(agent, tmp_path, arrived, "their arrival")
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert agent.worlds[-1][1] == [0, *new]


def test_a_rank_joins_before_the_first_checkpoint(tmp_path, quiet):
    with agent_for(tmp_path, HOLD="0:5") as agent:
        agent.start(2)
        agent.wait(lambda: agent.heard("first_step"), "a first step")
        new = agent.join(when="step")
        go_when(agent, tmp_path, lambda: agent.workers[new].arrived, "its arrival")
        # In the middle of the first epoch, and as in a quiet run.
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert [w[1] for w in agent.worlds] == [[0, 1], [0, 1, 2]]
        assert {line[4] for line in rows.read(tmp_path) if line[2] == 0} == {2, 3}


def test_a_rank_joins_a_training_without_checkpoints_in_a_later_epoch(tmp_path, quiet):
    with agent_for(tmp_path, HOLD="0:40", CHECKPOINTS="0") as agent:
        agent.start(2)
        agent.wait(lambda: len(agent.heard("report", 0)) == 2, "two reports")
        new = agent.join(when="step")
        go_when(agent, tmp_path, lambda: agent.workers[new].arrived, "its arrival")
        assert check(agent, tmp_path)[3] == quiet[3]
        late = {line[2] for line in rows.read(tmp_path) if line[0] == 2}
        assert late == {2, 3}, "the new rank took part in epochs that were over"


@pytest.mark.parametrize("again", [1, 3])
def test_a_whole_job_is_saved_and_goes_on_without_losing_a_step(tmp_path, quiet, again):
    with agent_for(tmp_path, HOLD="0:20") as agent:
        agent.start(2)
        wait_held(agent, tmp_path)
        agent.save()
        (tmp_path / "go").touch()
        assert set(agent.wait_end().values()) == {0}, agent.log(0)
        saved = agent.heard("saved", 0)
        assert len(saved) == 1 and os.path.isdir(saved[0]["path"])
        step = saved[0]["step"]
        assert step in (20, 21)
    with agent_for(tmp_path, AF_WORKER_SHIFT="10") as agent:
        agent.start(again)
        # The marks of both halves together are those of a quiet run.
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert f"goes on from step {step}" in agent.log(0)
        assert not os.path.exists(saved[0]["path"]), "the snapshot of an older checkpoint stays"


def test_a_snapshot_of_another_start_is_not_used(tmp_path):
    with agent_for(tmp_path, HOLD="0:20") as agent:
        agent.start(1)
        wait_held(agent, tmp_path)
        agent.save()
        (tmp_path / "go").touch()
        agent.wait_end()
    storage = tmp_path / "storage" / "1"
    for path in storage.glob("step-*"):
        path.rename(storage / f"gone-{path.name}")
    with agent_for(tmp_path) as agent:
        agent.start(1)
        assert agent.wait_end() == {0: 0}
        assert re.search("the snapshot .* is not used: it follows step-", agent.log(0))


def test_loaders_with_worker_processes(tmp_path, quiet):
    with agent_for(tmp_path, LOADER_WORKERS="2", AF_KILL="2:20:middle") as agent:
        agent.start(3)
        check(agent, tmp_path, {2})


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_random_moments(tmp_path, seed):
    draw = random.Random(seed)
    with agent_for(tmp_path, EPOCHS="40") as agent:
        agent.start(4)
        agent.wait(lambda: agent.heard("first_step"), "a first step")
        killed = draw.sample([1, 2, 3], 2)
        for number in killed:
            time.sleep(draw.uniform(0.02, 0.3))  # no event: at a moment that nobody has chosen
            agent.kill(number)
        check(agent, tmp_path, set(killed), epochs=40)
        assert len(agent.worlds) > 1


@pytest.mark.parametrize("kills", ["", "2:20:middle"])
def test_gradients_over_a_process_group_of_torch(tmp_path, quiet, kills):
    """As with NCCL on GPUs: one group for each world, met through the agent."""
    killed = {2} if kills else set()
    with agent_for(tmp_path, AF_TORCH_BACKEND="gloo", AF_KILL=kills, AF_FAIL="1:40") as agent:
        agent.start(3)
        final = check(agent, tmp_path, killed)
        assert final[0] == pytest.approx(quiet[0], rel=0.05 if kills else 1e-5)
        assert len(agent.worlds) == 2 + len(killed)


def test_a_job_of_a_fixed_size(tmp_path, quiet):
    command = [python(), str(PROGRAM)]
    with Agent(command, tmp_path, elastic=False, nursery=_nursery[0]) as agent:
        agent.start(3)
        assert check(agent, tmp_path) == pytest.approx(quiet, rel=1e-5)
        assert not agent.heard("arrive")


def test_in_a_job_of_a_fixed_size_a_loss_is_an_error(tmp_path):
    command, environment = [python(), str(PROGRAM)], {"AF_KILL": "2:20:before"}
    with Agent(
        command, tmp_path, elastic=False, environment=environment, nursery=_nursery[0]
    ) as agent:
        agent.start(3)
        assert agent.wait_end() == {0: 1, 1: 1, 2: -9}
        assert re.search("CommunicatorError: .*rank 2", agent.log(0)), agent.log(0)


def test_several_ranks_have_parts_of_a_checkpoint_and_a_disk_is_full(tmp_path):
    program = PROGRAM.with_name("parts.py")
    with Agent([python(), str(program)], tmp_path, nursery=_nursery[0]) as agent:
        agent.start(2)
        assert agent.wait_end() == {0: 0, 1: 0}, agent.log(0) + agent.log(1)
        path = pathlib.Path(agent.heard("checkpoint")[0]["path"])
        assert sorted(p.name for p in path.iterdir() if p.suffix == ".pt") == ["0.pt", "1.pt"]
        assert not list(path.parent.glob(".parts*"))
        assert "cannot save the checkpoint" in agent.log(0)
        assert [m["metrics"]["n"] for m in agent.heard("report", 0)] == [0, 1, 2]
        assert len(agent.heard("checkpoint")) == 2
        assert "LAST 1" in agent.log(0) and "LAST 1" in agent.log(1)
