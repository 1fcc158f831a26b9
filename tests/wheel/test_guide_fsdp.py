# SPDX-License-Identifier: Apache-2.0
"""The users' FSDP listing under af-launch, on the CPU: torch shards there since 2.x.

Changed are its import lines, use_gpu and the storage path (tests/listings/listings.py); rows, steps and
epochs are the guide's where a test does not say otherwise. It runs as `af-launch --workers N python train.py`;
tests/cluster/test_listings.py runs it as a job.
"""

import pathlib
import re
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/listings"))

from listings import EPOCHS, STEPS, events, launch, on_the_cpu, steered  # noqa: E402

PARAMETERS = 20 * 64 + 64 + 64 + 1


def write(directory, **other):
    """The listing as train.py; `other`: numbers in it that are to be others, by their place."""
    text = on_the_cpu("fsdp.py")
    for place, number in other.items():
        old, new = {"rows": ("100_000, ", f"{number}, "), "batch": ("batch_size=512", f"batch_size={number}")}[place]
        assert text.count(old) == 1
        text = text.replace(old, new)
    (directory / "train.py").write_text(text)


def result(directory, printed, steps=STEPS):
    """The state behind fit(): one rank prints where it is, as the last line."""
    path, = re.findall(r"(?m)^(?:\[0\] )?(/.*/ray_results/.*)$", printed)
    assert printed.rstrip().endswith(path)
    assert re.fullmatch(rf"{directory}/ray_results/[\w-]+/step-0*{EPOCHS * steps}", path)
    state = torch.load(f"{path}/state.pt")
    assert state["epoch"] == EPOCHS - 1
    assert {float(s["step"]) for s in state["optimizer"]["state"].values()} == {EPOCHS * steps}
    return state


def loss_of(state):
    """Of the model, on rows that it has not seen."""
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    net.load_state_dict(state["model"])
    x = torch.randn(20_000, 20, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return torch.nn.BCEWithLogitsLoss()(net(x), (x.sum(dim=1, keepdim=True) > 0).float()).item()


def held(printed):
    return [int(number) for number in re.findall(r"(?m)^(?:\[\d\] )?holds (\d+) parameters$", printed)]


def train_alone(directory):
    """One process, without a launcher: what `python train.py` prints."""
    environment = steered(AF_MAX_WORKERS="1", AF_LIBRARY="/nowhere")  # a process alone needs no library
    environment["PYTHONPATH"] += f":{ROOT}/python"
    done = subprocess.run([sys.executable, "train.py"], cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert held(done.stdout) == [PARAMETERS]
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    directory = tmp_path_factory.mktemp("alone")
    write(directory)
    loss = loss_of(result(directory, train_alone(directory)))
    assert loss < 0.1  # 0.69 before the first step
    return loss


def test_two_ranks_train_as_one_process(tmp_path, alone):
    write(tmp_path)
    printed, said = launch(tmp_path, 2, sys.executable, "train.py")
    assert loss_of(result(tmp_path, printed)) == pytest.approx(alone, rel=1e-4)
    # Each holds half of every layer, up to padding.
    assert len(held(printed)) == 2
    assert all(PARAMETERS / 2 <= number <= PARAMETERS / 2 + 8 for number in held(printed))
    reports = events(tmp_path, "report")
    assert [report["step"] for report in reports] == [STEPS * (e + 1) for e in range(EPOCHS)]
    assert re.findall(r"(?m)^\[0\] af: epoch (\d), loss [\d.]+, 2 processes", said) == list("12345")
    assert len(list(tmp_path.glob("ray_results/*/step-*/state.pt"))) == EPOCHS


def test_killed_it_is_started_again_and_goes_on_from_its_checkpoint(tmp_path, alone):
    write(tmp_path)
    printed, said = launch(tmp_path, 2, sys.executable, "train.py", AF_TEST_KILL=f"1:{STEPS + 10}")
    assert re.search(r"rank 1 on \S+ failed: .*KILL.*; failure 1 of the 10 that are allowed", said), said
    assert loss_of(result(tmp_path, printed)) == pytest.approx(alone, rel=1e-4)
    assert [e["size"] for e in events(tmp_path, "world_formed")] == [2, 2]
    reports = [(e["generation"], e["epoch"]) for e in events(tmp_path, "report")]
    assert reports == [(0, 1), (1, 2), (1, 3), (1, 4), (1, 5)]


def test_shares_of_a_batch_that_differ_weigh_by_their_rows(tmp_path):
    """Shares of 2, 1 and 1 rows. The guide's, of 171, 171 and 170, would hide a wrong weight in the rounding."""
    models = []
    for ranks in (1, 3):
        directory = tmp_path / str(ranks)
        directory.mkdir()
        write(directory, rows=200, batch=4)
        printed = launch(directory, ranks, sys.executable, "train.py")[0] if ranks > 1 else train_alone(directory)
        models.append(result(directory, printed, steps=50)["model"])
    assert all(PARAMETERS / 3 <= number <= PARAMETERS / 3 + 8 for number in held(printed))
    for name, parameter in models[0].items():
        torch.testing.assert_close(models[1][name], parameter, rtol=0, atol=1e-4)
