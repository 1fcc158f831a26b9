# SPDX-License-Identifier: Apache-2.0
"""The users' FSDP listing with its import lines changed, on the CPU: torch shards there since 2.x."""

import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))

from fake_agent import Agent, Nursery, python  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("programs") / "guide_fsdp.py"
STEPS = 40  # 20,000 rows, 512 a step: 39 and a tail of 32
EPOCHS = 5
PARAMETERS = 20 * 64 + 64 + 64 + 1


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


def start(directory, nursery, **environment):
    return Agent(
        [python(), str(PROGRAM)], directory, elastic=False, environment=environment, nursery=nursery
    )


def finals(agent):
    """[(loss over all rows, parameters this rank holds, first epoch)] by rank."""
    found = [re.search(r"FINAL (\S+) (\d+) (\d+)", agent.log(n)) for n in sorted(agent.workers)]
    assert all(found), [agent.log(n) for n in agent.workers]
    return [(float(f[1]), int(f[2]), int(f[3])) for f in found]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory, nursery):
    """The loss of two ranks that nothing happens to."""
    directory = tmp_path_factory.mktemp("quiet")
    with start(directory, nursery) as agent:
        agent.start(2)
        assert set(agent.wait_end(300).values()) == {0}, [agent.log(n) for n in agent.workers]
        losses, held, first = zip(*finals(agent))
        assert losses[0] == losses[1]
        # Each holds half of every layer, up to padding.
        assert all(PARAMETERS / 2 <= h <= PARAMETERS / 2 + 8 for h in held)
        assert first == (0, 0)
        reports = agent.heard("report", 0)
        assert [r["step"] for r in reports] == [STEPS * (e + 1) for e in range(EPOCHS)]
        # Code behind fit() ran on rank 0 alone.
        printed = [n for n in agent.workers if "ray_results" in agent.log(n).splitlines()[-1]]
        assert printed == [0]
        return losses[0]


def test_it_learns(quiet):
    assert quiet < 0.4  # 0.69 before the first step


def test_killed_and_started_again_it_goes_on_from_its_checkpoint(tmp_path, quiet, nursery):
    with start(tmp_path, nursery, AF_KILL=f"1:{2 * STEPS + 10}") as agent:
        agent.start(2)
        agent.wait(lambda: 1 in agent.exits, "the death of rank 1", 300)
    with start(tmp_path, nursery) as agent:  # the end of the block above has ended the other rank
        agent.start(2)
        assert set(agent.wait_end(300).values()) == {0}, [agent.log(n) for n in agent.workers]
        for loss, _, first in finals(agent):
            assert first == 2
            assert loss == pytest.approx(quiet, rel=1e-3)


def test_shares_of_a_batch_that_differ_weigh_by_their_rows(tmp_path, quiet, nursery):
    """512 rows on three ranks: 171, 171 and 170."""
    with start(tmp_path, nursery) as agent:
        agent.start(3)
        assert set(agent.wait_end(300).values()) == {0}, [agent.log(n) for n in agent.workers]
        assert [loss for loss, _, _ in finals(agent)] == pytest.approx([quiet] * 3, rel=1e-3)


def test_alone_without_a_launcher(tmp_path):
    import subprocess

    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "python"), "AF_MAX_WORKERS": "1"}
    environment.update(AF_WORKER="0", AF_LIBRARY="/nowhere")  # a process alone needs no library
    done = subprocess.run(
        [python(), str(PROGRAM)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    path = done.stdout.strip().splitlines()[-1]
    assert re.fullmatch(rf"{tmp_path}/ray_results/run-.*/step-0*{EPOCHS * STEPS}", path)
