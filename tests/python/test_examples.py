# SPDX-License-Identifier: Apache-2.0
"""The examples on this machine's CPU under af-launch: they learn, and a world of two comes to what a world of one does."""
import glob
import os
import pathlib
import re
import subprocess
import sys

import pytest
import torch
from fake_agent import ROOT, Agent

LAUNCH = ROOT / "build/bin/af-launch"
CPP = ROOT / "build/examples"
PYTHON = ROOT / "examples/python"
DATA = ROOT / "examples/data"
STEPS = 27  # of gpt in an epoch of stories.txt


def run(directory, workers, *command, **environment):
    """What the ranks print, without their numbers; workers=0 starts the program without af-launch."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "AF_", "PMI", "MLFLOW"))}
    clean.update(environment, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    launch = [LAUNCH, "--workers", str(workers)] if workers else []
    directory.mkdir(exist_ok=True)
    done = subprocess.run([*launch, *map(str, command)], cwd=directory, env=clean, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    return re.sub(r"(?m)^\[\d+\] ", "", done.stdout)


def losses(output):
    return [float(loss) for loss in re.findall(r"(?m)^epoch +\d+:? +loss ([\d.]+)", output)]


def state(directory):
    """Of the newest checkpoint of a run's own directory."""
    path, = glob.glob(f"{directory}/af-runs/*/checkpoints")
    newest = sorted(pathlib.Path(path).glob("step-*"))[-1]
    return torch.load(newest / "state.pt")


def test_data_parallel_and_sharded_are_the_training_of_one_process(tmp_path):
    """The same batches at every world size: equal but for rounding, which Adam lets grow a little."""
    one = run(tmp_path / "one", 1, CPP / "data_parallel", EPOCHS="2")
    assert len(losses(one)) == 2 and losses(one)[1] < losses(one)[0] < 0.5
    assert losses(run(tmp_path, 0, CPP / "data_parallel", EPOCHS="2")) == losses(one)
    weights = state(tmp_path / "one")["model"]
    for name in ("data_parallel", "fsdp"):
        directory = tmp_path / name
        two = run(directory, 2, CPP / name, EPOCHS="2")
        assert "2 ranks" in two
        assert losses(two) == pytest.approx(losses(one), abs=2e-4)
        found = state(directory)["model"]
        assert list(found) == list(weights)
        for key, tensor in weights.items():
            torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-3)


def test_sharded_goes_on_with_another_number_of_processes(tmp_path):
    whole = losses(run(tmp_path / "whole", 1, CPP / "fsdp", EPOCHS="3"))
    checkpoints = str(tmp_path / "checkpoints")
    first = losses(run(tmp_path, 2, CPP / "fsdp", EPOCHS="1", AF_CHECKPOINT_DIR=checkpoints))
    rest = losses(run(tmp_path, 3, CPP / "fsdp", EPOCHS="3", AF_CHECKPOINT_DIR=checkpoints))
    assert (len(first), len(rest)) == (1, 2)
    assert first + rest == pytest.approx(whole, abs=2e-4)


def test_a_model_in_two_stages_learns_the_same_in_micro_batches(tmp_path):
    whole = losses(run(tmp_path, 0, CPP / "two_gpus", EPOCHS="1", MICRO_BATCHES="1"))
    parts = losses(run(tmp_path, 1, CPP / "two_gpus", EPOCHS="1", MICRO_BATCHES="3"))
    assert whole[0] < 0.1
    assert parts == pytest.approx(whole, abs=2e-3)


def test_the_script_for_two_gpus_runs_where_there_is_none(tmp_path):
    assert losses(run(tmp_path, 1, sys.executable, PYTHON / "two_gpus.py", EPOCHS="1"))[0] < 0.1


def perplexities(output):
    return [float(value) for value in re.findall(r"(?m)^epoch.*perplexity ([\d.]+)", output)]


def test_gpt_learns_a_text_and_is_fine_tuned_on_another(tmp_path):
    gpt = CPP / "gpt"
    base = str(tmp_path / "base")
    one = run(tmp_path, 0, gpt, "--text", DATA / "stories.txt", "--epochs", "4")
    two = run(tmp_path, 2, gpt, "--text", DATA / "stories.txt", "--epochs", "4", "--checkpoints", base)
    assert "world 1" in one and "world 2" in two
    assert perplexities(two) == pytest.approx(perplexities(one), rel=0.02)
    unigram = float(re.search(r"frequencies: ([\d.]+)", one)[1])
    assert unigram > 15 and perplexities(two)[-1] < unigram / 2
    assert "a sample:\nOne " in two

    task = DATA / "instructions.txt"
    prompt = r"### Instruction:\nName the day that comes next.\n### Input:\nFriday\n### Response:\n"
    tuned = run(tmp_path, 2, gpt, "--text", task, "--from", base, "--epochs", "2", "--prompt", prompt)
    anew = run(tmp_path, 0, gpt, "--text", task, "--epochs", "2", "--checkpoints", "")
    assert perplexities(tuned)[0] < perplexities(anew)[0]
    assert "### Response:" in tuned.split("a sample:")[1]

    # The same model in Python: it goes on from what C++ has saved, on two ranks.
    python = run(tmp_path, 2, sys.executable, PYTHON / "gpt.py", "--text", task, "--from", base, "--epochs", "1")
    assert perplexities(python)[0] < perplexities(anew)[0]


def test_gpt_goes_on_where_it_was(tmp_path):
    text = ["--text", DATA / "instructions.txt", "--epochs", "2", "--checkpoints", tmp_path / "checkpoints"]
    whole = perplexities(run(tmp_path, 2, CPP / "gpt", *text))
    newest = sorted((tmp_path / "checkpoints").glob("step-*"))[-1]
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    again = run(tmp_path, 0, CPP / "gpt", *text)
    assert "resumed from" in again
    assert perplexities(again) == pytest.approx(whole[1:], rel=0.02)


def processor_seconds(pid):
    """What a process has computed: it goes on with its work, not with the clock."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_gpt_loses_a_gpu_in_mid_training(tmp_path):
    """The others go on in the step that it was in: each epoch is there once, with the loss of a quiet run."""
    text = ["--text", DATA / "stories.txt", "--epochs", "4"]
    quiet = run(tmp_path, 0, CPP / "gpt", *text, "--checkpoints", "")
    command = [str(word) for word in (CPP / "gpt", *text, "--checkpoints", tmp_path / "checkpoints")]
    with Agent(command, tmp_path) as agent:
        agent.start(3)
        agent.wait(lambda: agent.heard("report", 0), "the first epoch")
        began = processor_seconds(agent.workers[2].pid)
        agent.wait(lambda: processor_seconds(agent.workers[2].pid) > began + 0.1, "steps of the second epoch")
        agent.kill(2)
        assert agent.wait_end() == {0: 0, 1: 0, 2: -9}, [agent.log(n) for n in agent.workers]
        assert [len(numbers) for _, numbers in agent.worlds] == [3, 2]
        again = [message["step"] for message in agent.heard("arrive", 0)][-1]
        assert STEPS < again < 4 * STEPS  # behind the first epoch, and not at the end
        assert [message["epoch"] for message in agent.heard("report", 0)] == [0, 1, 2, 3]
        printed = agent.log(0)
        assert re.findall(r"(?m)^epoch +(\d+) .* world (\d)$", printed)[::3] == [("0", "3"), ("3", "2")]
        assert "resumed" not in printed  # they were not started again
        # The rows that the lost one had of its last step come at the end of their epoch.
        assert losses(printed) == pytest.approx(losses(quiet), rel=0.02)
        assert perplexities(printed) == pytest.approx(perplexities(quiet), rel=0.02)


def test_wrong_options_of_gpt_are_one_line(tmp_path):
    for options, words in ((["--from", "/nowhere"], "no checkpoint in /nowhere"), (["--text", "/nowhere"], "cannot read the text /nowhere"),
                           (["--context", "100000"], "is too short")):
        done = subprocess.run([CPP / "gpt", *options], cwd=ROOT, text=True, capture_output=True, timeout=60)
        assert done.returncode == 1 and words in done.stderr and len(done.stderr.splitlines()) == 1


def test_texts_are_what_their_script_writes(tmp_path):
    subprocess.run([ROOT / "scripts/make-gpt-texts", tmp_path], check=True)
    for name in ("stories.txt", "instructions.txt"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()
