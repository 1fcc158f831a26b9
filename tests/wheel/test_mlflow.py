# SPDX-License-Identifier: Apache-2.0
"""The C++ logger against a real MLflow server, asked by MLflow's own client; the server is killed in the
middle and the training, too: nothing is lost, nothing is there twice."""
import itertools
import math
import os
import re
import subprocess

import mlflow
import pytest
from conftest import ROOT, wait_for

_numbers = itertools.count(1)


@pytest.fixture
def experiment():
    return f"experiment-{next(_numbers)}"


def runs_of(server, experiment):
    client = mlflow.MlflowClient(tracking_uri=server.uri)
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id]) if found else []


def history(server, run, name):
    client = mlflow.MlflowClient(tracking_uri=server.uri)
    values = client.get_metric_history(run.info.run_id, name)
    return sorted(values, key=lambda one: one.step)


def steps_of(server, run, name="loss"):
    return [one.step for one in history(server, run, name)]


def wait_for_steps(server, experiment, count):
    def there():
        runs = runs_of(server, experiment)
        return runs and len(steps_of(server, runs[0])) == count
    wait_for(there)


def variables(server, experiment):
    return {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_EXPERIMENT_NAME": experiment}


def test_a_run_with_every_value(mlflow_server, experiment, start_training):
    training = start_training(**variables(mlflow_server, experiment), SLURM_JOB_ID="42")
    training.steps(700)  # 2100 values: more than a batch holds
    wait_for_steps(mlflow_server, experiment, 700)  # the end does not wait for a slow machine
    assert training.finish() == ""
    [run] = runs_of(mlflow_server, experiment)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run-7"
    assert run.data.tags["slurm.job"] == "42"
    assert steps_of(mlflow_server, run) == list(range(1, 701))
    loss = [one.value for one in history(mlflow_server, run, "loss")]
    assert loss[0] > 1 > loss[-1] >= 0
    odd = history(mlflow_server, run, "odd ___")  # MLflow takes no other characters
    assert [math.isnan(one.value) for one in odd[:4]] == [False, True, False, True]


def test_a_server_that_is_killed_in_the_middle(mlflow_server, experiment, start_training, tmp_path):
    training = start_training(**variables(mlflow_server, experiment))
    training.steps(10)
    wait_for_steps(mlflow_server, experiment, 10)
    mlflow_server.kill()
    training.steps(10)
    wait_for(lambda: '"step":20' in "".join(path.read_text() for path in (tmp_path / "mlflow").glob("spool-*.jsonl")))
    mlflow_server.start()
    training.steps(10)
    wait_for_steps(mlflow_server, experiment, 30)
    said = training.finish()
    assert said.count("does not take values now: ") == 1, said
    assert said.count("is there again") == 1, said
    [run] = runs_of(mlflow_server, experiment)
    assert steps_of(mlflow_server, run) == list(range(1, 31))
    assert run.info.status == "FINISHED"
    assert not list((tmp_path / "mlflow").glob("spool-*"))


def test_a_training_that_is_killed_goes_on_in_its_run(mlflow_server, experiment, start_training):
    first = start_training(**variables(mlflow_server, experiment))
    first.steps(10)
    wait_for_steps(mlflow_server, experiment, 10)
    first.kill()
    second = start_training(11, **variables(mlflow_server, experiment))
    second.steps(10)
    wait_for_steps(mlflow_server, experiment, 20)
    second.finish()
    [run] = runs_of(mlflow_server, experiment)
    assert steps_of(mlflow_server, run) == list(range(1, 21))
    assert run.info.status == "FINISHED"


def test_a_given_run(mlflow_server, experiment, start_training, tmp_path):
    client = mlflow.MlflowClient(tracking_uri=mlflow_server.uri)
    given = client.create_run(client.create_experiment(experiment))
    training = start_training(MLFLOW_TRACKING_URI=mlflow_server.uri, MLFLOW_RUN_ID=given.info.run_id)
    training.steps(3)
    assert training.finish() == ""
    [run] = runs_of(mlflow_server, experiment)
    assert run.info.run_id == given.info.run_id
    assert steps_of(mlflow_server, run) == [1, 2, 3]
    assert not (tmp_path / "mlflow" / "run.json").exists()


def test_the_example_gpt_reports_each_epoch(mlflow_server, experiment, tmp_path):
    """As a person starts it: no more than MLFLOW_TRACKING_URI is set. One of its two ranks tells MLflow."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AF_", "MLFLOW_", "SLURM_"))}
    done = subprocess.run(
        [ROOT / "build/bin/af-launch", "--workers", "2", ROOT / "build/examples/gpt", "--epochs", "3",
         "--text", ROOT / "examples/data/stories.txt"],
        cwd=tmp_path, env={**clean, **variables(mlflow_server, experiment)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = re.findall(r"(?m)^\[0\] epoch +\d+ +loss (\S+) +held-out loss (\S+) +perplexity (\S+)", done.stdout)
    assert len(printed) == 3, done.stdout
    [run] = runs_of(mlflow_server, experiment)
    assert run.info.status == "FINISHED"
    for place, (name, digits) in enumerate((("loss", 1e-4), ("held_out_loss", 1e-4), ("perplexity", 1e-2))):
        told = history(mlflow_server, run, name)
        assert [one.step for one in told] == [27, 54, 81]
        assert [one.value for one in told] == pytest.approx([float(line[place]) for line in printed], abs=digits)
