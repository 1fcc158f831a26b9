# SPDX-License-Identifier: Apache-2.0
"""The users' data-parallel listing with its import lines changed."""

import pathlib
import re
import subprocess

import pytest
import rows
from fake_agent import ROOT, Agent, Nursery, python

PROGRAM = pathlib.Path(__file__).with_name("programs") / "guide.py"
STEPS = 196  # 100,000 rows, 512 a step: 195 and a tail


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory, nursery):
    directory = tmp_path_factory.mktemp("quiet")
    with Agent([python(), str(PROGRAM)], directory, nursery=nursery) as agent:
        agent.start(1)
        assert agent.wait_end() == {0: 0}, agent.log(0)
        return rows.finals(agent.log(0))[0]


def test_alone_without_a_launcher(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "python"), "AF_MAX_WORKERS": "4"}
    environment.update(AF_WORKER="0", AF_LIBRARY="/nowhere")  # a process alone needs no library
    done = subprocess.run(
        [python(), str(PROGRAM)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    path = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(rf"{tmp_path}/ray_results/run-.*/step-0*{5 * STEPS}", path)
    assert (pathlib.Path(path) / "state.pt").exists()


def test_loses_a_rank_in_mid_epoch_and_gets_another(tmp_path, quiet, nursery):
    environment = {"AF_KILL": "2:300", "HOLD": "0:310"}
    with Agent([python(), str(PROGRAM)], tmp_path, environment=environment, nursery=nursery) as agent:
        agent.start(3)
        agent.wait(lambda: 2 in agent.exits, "the death of worker 2")
        new = agent.join()
        agent.wait(lambda: agent.workers[new].arrived, "its arrival")
        agent.wait(lambda: (tmp_path / "held").exists(), "step 310")
        (tmp_path / "go").touch()
        exits = agent.wait_end()
        assert exits == {0: 0, 1: 0, 2: -9, new: 0}, [agent.log(n) for n in agent.workers]
        assert [len(w[1]) for w in agent.worlds] == [3, 2, 3]
        epochs = [m["epoch"] for m in agent.heard("report", 0)]
        assert epochs == [1, 2, 3, 4, 5]
        finals = [rows.finals(agent.log(n))[0] for n in (0, 1, new)]
        assert finals == pytest.approx([quiet] * 3, rel=1e-3)
        assert agent.heard("options", 0) == [{"op": "options", "max_failures": 10}]
        # Code behind fit() ran on rank 0 alone.
        printed = [n for n in agent.workers if "ray_results" in agent.log(n)]
        assert printed == [0]


def test_many_changes_of_the_world_leave_nothing_behind(tmp_path, nursery):
    program = PROGRAM.with_name("reforming.py")
    environment = {"TIMES": "200"}
    with Agent([python(), str(program)], tmp_path, environment=environment, nursery=nursery) as agent:
        agent.start(2)
        assert set(agent.wait_end(240).values()) == {0}, agent.log(0)
        assert len(agent.worlds) == 221
        for number in agent.workers:
            found = re.search(r"HELD (.*)", agent.log(number))
            fds, threads, memory, mapped, fds_after, threads_after, memory_after, mapped_after = map(
                int, found[1].split()
            )
            assert fds_after <= fds and threads_after <= threads
            assert memory_after - memory < 20_000, "kB of memory"  # 200 buckets would be 400,000
            assert mapped_after - mapped < 100_000, "kB of addresses"
