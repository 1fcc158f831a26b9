# SPDX-License-Identifier: Apache-2.0
"""The users' listing for a model on two GPUs under af-launch: plain PyTorch, nothing of af.

It has no import line to change: "cuda:0" and "cuda:1" are "cpu". It runs twice here, so with a tenth of the
rows, which saves half a minute; tests/cluster/test_listings.py runs it with all of them, as a job with two GPUs.
"""

import pathlib
import re
import subprocess
import sys

from fake_agent import ROOT, python

sys.path.insert(0, str(ROOT / "tests/listings"))

from listings import EPOCHS, events, launch, on_the_cpu, steered  # noqa: E402


def test_trains_as_without_a_launcher_and_says_nothing_to_it(tmp_path):
    text = on_the_cpu("two_gpus.py")
    assert text.count('"cpu"') == 5 and "cuda" not in text
    (tmp_path / "train.py").write_text(text.replace("100_000", "10_000"))
    plain = subprocess.Popen(
        [python(), "train.py"], cwd=tmp_path, env=steered(), stdout=subprocess.PIPE, text=True)
    try:
        printed, _ = launch(tmp_path, 1, python(), "train.py")
        alone, _ = plain.communicate(timeout=300)
    finally:
        plain.kill()
    assert printed == "".join(f"[0] {line}\n" for line in alone.splitlines())
    losses = [float(x) for x in re.findall(r"epoch \d: loss (\S+)", printed)]
    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] and losses[-1] < 0.2  # 0.69 before the first step
    for word in ("first_step", "report", "checkpoint"):
        assert events(tmp_path, word) == []
