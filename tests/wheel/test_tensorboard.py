# SPDX-License-Identifier: Apache-2.0
"""Event files of the C++ logger, read by TensorBoard itself; the other files by who reads such files."""
import json
import math

import numpy
import pandas
from conftest import wait_for
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(directory):
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def loss_steps(directory):
    accumulator = read(directory)
    return [one.step for one in accumulator.Scalars("loss")] if "loss" in accumulator.Tags()["scalars"] else []


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_tensorboard_reads_every_value(start_training, tmp_path):
    training = start_training()
    assert training.steps(50) == 50
    assert training.finish() == ""
    accumulator = read(tmp_path / "tensorboard")
    assert sorted(accumulator.Tags()["scalars"]) == ["loss", "odd (%)", "test/r2"]
    written = lines_of(tmp_path / "metrics.jsonl")
    assert [one["step"] for one in written] == list(range(1, 51))
    for name in ("loss", "test/r2"):
        scalars = accumulator.Scalars(name)
        assert [one.step for one in scalars] == list(range(1, 51))
        assert [one.value for one in scalars] == [float(numpy.float32(one["metrics"][name])) for one in written]
        # In seconds since 1970; each logger looks at the clock itself, so only about the same.
        assert all(abs(one.wall_time - line["t"]) < 60 for one, line in zip(scalars, written))
    odd = accumulator.Scalars("odd (%)")
    assert [math.isnan(one.value) for one in odd] == [one.step % 2 == 0 for one in odd]


def test_a_start_behind_a_kill_is_read_with_what_was_before(start_training, tmp_path):
    first = start_training()
    first.steps(10)
    wait_for(lambda: loss_steps(tmp_path / "tensorboard") == list(range(1, 11)))
    first.kill()
    [file] = (tmp_path / "tensorboard").glob("*")
    with open(file, "ab") as torn:
        torn.write(b"\x21\x00\x00\x00\x00\x00\x00\x00\x7b\xec\xf6\x09\x00\x00")  # half a record
    second = start_training(11)
    second.steps(10)
    second.finish()
    assert len(list((tmp_path / "tensorboard").glob("*"))) == 2
    assert loss_steps(tmp_path / "tensorboard") == list(range(1, 21))


def test_the_table_is_read_by_pandas(start_training, tmp_path):
    training = start_training()
    training.steps(5)
    training.finish()
    table = pandas.read_csv(tmp_path / "metrics.csv")
    assert list(table.columns) == ["time", "step", "epoch", "loss", "odd (%)", "test/r2"]
    assert list(table["step"]) == [1, 2, 3, 4, 5]
    assert list(table["loss"]) == [one["metrics"]["loss"] for one in lines_of(tmp_path / "metrics.jsonl")]
    assert list(table["odd (%)"].isna()) == [False, True, False, True, False]


def test_a_profile_of_chosen_steps(start_training, tmp_path):
    training = start_training(AF_PROFILE_STEPS="3-4")
    training.steps(6)
    training.finish()
    trace = json.loads((tmp_path / "profile" / "steps-3-4-rank-0.json").read_text())
    spans = [event["name"] for event in trace["traceEvents"] if event["ph"] == "X"]
    assert spans == ["step of the line", "step 3", "step of the line", "step 4"]
