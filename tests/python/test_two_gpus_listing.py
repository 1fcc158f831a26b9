# SPDX-License-Identifier: Apache-2.0
"""The users' listing for a model on two GPUs, with the CPU for both: plain PyTorch, nothing of af."""

import pathlib
import re

from fake_agent import Agent, python

PROGRAM = pathlib.Path(__file__).with_name("programs") / "guide_two_gpus.py"


def test_runs_as_one_rank_that_says_nothing_to_the_launcher(tmp_path):
    with Agent([python(), str(PROGRAM)], tmp_path, elastic=False) as agent:
        agent.start(1)
        assert agent.wait_end(300) == {0: 0}, agent.log(0)
        losses = [float(x) for x in re.findall(r"epoch \d: loss (\S+)", agent.log(0))]
        assert len(losses) == 5
        assert losses[-1] < losses[0] and losses[-1] < 0.4
        assert agent.events == []
