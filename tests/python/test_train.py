# SPDX-License-Identifier: Apache-2.0
"""Settings, lines for people, the model's wrapper, data in memory: one process, no launcher."""

import copy
import inspect
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import af.train  # noqa: E402
import af.train.torch  # noqa: E402
from af.train import _config, _progress  # noqa: E402
from af.train.torch import _channel, _loader, _shard  # noqa: E402
from fake_agent import ROOT  # noqa: E402


def names(function):
    return [p for p in inspect.signature(function).parameters if p != "self"]


def test_names_and_their_order_are_those_of_ray():
    assert names(af.train.torch.prepare_model) == [
        "model", "move_to_device", "parallel_strategy", "parallel_strategy_kwargs",
    ]  # fmt: skip
    assert names(af.train.torch.prepare_data_loader)[:4] == [
        "data_loader", "add_dist_sampler", "move_to_device", "auto_transfer",
    ]  # fmt: skip
    assert names(af.train.report)[:3] == ["metrics", "checkpoint", "checkpoint_dir_name"]
    assert names(af.train.torch.TorchTrainer) == [
        "train_loop_per_worker", "train_loop_config", "torch_config", "scaling_config",
        "run_config", "datasets", "dataset_config", "metadata", "resume_from_checkpoint",
    ]  # fmt: skip
    assert names(af.train.FailureConfig)[0] == "max_failures"
    assert names(af.train.RunConfig)[:5] == [
        "name", "storage_path", "storage_filesystem", "failure_config", "checkpoint_config",
    ]  # fmt: skip
    assert af.train.ScalingConfig().num_workers == 1
    assert af.train.FailureConfig().max_failures == 0
    assert af.train.CheckpointConfig().num_to_keep is None


@pytest.mark.parametrize(
    "workers, size, environment, expected",
    [
        (1, 1, {}, None),
        ((1, 4), 1, {}, None),
        (4, 1, {}, "num_workers=4, but this is one process"),
        (4, 4, {"AF_SOCKET": "@x"}, None),
        (4, 2, {"AF_SOCKET": "@x"}, "num_workers=4, but the job has 2: training on 2"),
        ((1, 4), 2, {"AF_SOCKET": "@x", "AF_ELASTIC": "1", "AF_MAX_WORKERS": "4"}, None),
        (4, 1, {"AF_SOCKET": "@x", "AF_ELASTIC": "1", "AF_MAX_WORKERS": "4"}, "--af-n-workers=4"),
        ((3, 4), 1, {"AF_SOCKET": "@x", "AF_ELASTIC": "1", "AF_MAX_WORKERS": "2"}, "training on those"),
    ],
)
def test_what_is_said_about_num_workers(workers, size, environment, expected):
    line = _config.workers_line(af.train.ScalingConfig(num_workers=workers), size, environment)
    assert (line is None) if expected is None else expected in line


@pytest.mark.parametrize("workers", [0, (2, 1), "4", (1, 2.5), True])
def test_a_number_of_workers_that_makes_no_sense(workers):
    with pytest.raises((ValueError, TypeError)):
        af.train.ScalingConfig(num_workers=workers)


@pytest.mark.parametrize(
    "config, environment, expected",
    [
        ({"storage_path": "/s", "name": "n"}, {"AF_RUN_ID": "7"}, "/s/n"),
        ({"storage_path": "/s"}, {"AF_RUN_ID": "7"}, "/s/7"),
        ({}, {"AF_RUN_ID": "7", "AF_CHECKPOINT_DIR": "/run/checkpoints"}, "/run/checkpoints/"),
        ({"storage_path": "/s"}, {"SLURM_JOB_ID": "8"}, "/s/run-8"),
        ({"storage_path": "/s"}, {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "8"}, "/s/run-8"),
    ],
)
def test_where_checkpoints_go(config, environment, expected):
    assert af.train.RunConfig(**config).directory(environment) == expected


@pytest.mark.parametrize("make, lines", [
    (lambda: af.train.RunConfig(), 0),
    (lambda: af.train.RunConfig(callbacks=[]), 0),
    (lambda: af.train.RunConfig(callbacks=[1], log_to_file=True), 2),
    (lambda: af.train.RunConfig(worker_runtime_env={"a": 1}, logging_config=1, stop={"x": 1}), 3),
    (lambda: af.train.FailureConfig(max_failures=3), 0),
    (lambda: af.train.FailureConfig(fail_fast=True), 1),
    (lambda: af.train.CheckpointConfig(num_to_keep=2), 0),
    (lambda: af.train.CheckpointConfig(checkpoint_frequency=5, checkpoint_at_end=True), 2),
])
def test_settings_without_effect_are_said(make, lines, capsys):
    make()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert all("has no effect here" in line for line in said)


def test_progress_lines():
    line = _progress.line
    assert line(3, 5, {"loss": 0.04123}, 4, True, 6.0) == (
        "epoch 3 of 5, loss 0.04123, 4 GPUs, 12 s left"
    )
    assert line(3, None, {"loss": 0.5, "epoch": 2}, 1, True, 6.0) == "epoch 3, loss 0.5, 1 GPU"
    assert line(None, 5, {}, 2, False, None) == "2 processes"
    assert line(5, 5, {}, 2, True, 6.0) == "epoch 5 of 5, 2 GPUs"
    assert _progress.duration(59.6) == "1 min" and _progress.duration(4000) == "1 h 6 min"
    assert _progress.total_epochs({"num_epochs": 7}) == 7 and _progress.total_epochs(None) is None


def test_use_gpu_without_a_gpu_is_an_error():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    trainer = af.train.torch.TorchTrainer(
        lambda: None, scaling_config=af.train.ScalingConfig(use_gpu=True)
    )
    with pytest.raises(RuntimeError, match="use_gpu=True.*sees no GPU"):
        trainer.fit()


@pytest.mark.parametrize(
    "device, environment, expected",
    [
        ("cpu", {"AF_BACKEND": "local"}, "local"),
        ("cpu", {"AF_BACKEND": "nccl"}, "local"),
        ("cuda", {"AF_BACKEND": "nccl"}, "nccl"),
        ("cuda", {"AF_BACKEND": "local"}, "local"),
        ("cuda", {}, "nccl"),
        ("cpu", {"AF_TORCH_BACKEND": "gloo"}, "gloo"),
    ],
)
def test_how_gradients_travel(device, environment, expected):
    assert _channel.backend_for(torch.device(device), environment) == expected


def test_the_wrapper_is_like_the_model():
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    net.name = "mine"
    model = af.train.torch.prepare_model(net)
    assert list(model.state_dict()) == list(net.state_dict()) and model.module is net
    assert model.name == "mine"
    model.load_state_dict({f"module.{k}": v + 1 for k, v in net.state_dict().items()})
    assert isinstance(copy.deepcopy(model), torch.nn.Sequential)
    with pytest.raises(AttributeError):
        model.nothing


def test_orders_depend_on_the_epoch_alone():
    first, second = _loader.permutation(50, 0), _loader.permutation(50, 1)
    torch.manual_seed(5)
    assert first.tolist() == _loader.permutation(50, 0).tolist() != second.tolist()
    assert sorted(second.tolist()) == list(range(50))


@pytest.mark.parametrize(
    "data", [{"x": [1.0, 2.0], "y": [3, 4]}, [{"x": 1.0, "y": 3}, {"x": 2.0, "y": 4}]]
)
def test_columns_of_data_in_memory(data):
    columns = _shard.columns_of(data, "train")
    assert columns["x"].tolist() == [1.0, 2.0] and columns["y"].tolist() == [3, 4]


def test_what_cannot_be_held_in_memory_is_said():
    with pytest.raises(NotImplementedError, match="dataset 'train' is a object"):
        _shard.columns_of(object(), "train")


def test_af_is_imported_without_torch_and_ray(tmp_path):
    for name in ("torch", "ray"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not for this test')")
    path = f"{tmp_path}:{ROOT / 'python'}"
    done = subprocess.run(
        [sys.executable, "-c", "import af, af.train; print(af.train.ScalingConfig())"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


LOOP = """
import af.train, af.train.torch, torch
def loop(config):
    shard = af.train.get_dataset_shard("train")
    for epoch in range(2):
        seen = []
        for batch in shard.iter_torch_batches(batch_size=config["batch"]):
            seen += batch["x"].tolist()
        print(sorted(seen) == list(range(10)))
    print(af.train.get_context().get_world_size(), af.train.get_preemption_info())
af.train.torch.TorchTrainer(loop, train_loop_config={"batch": 3},
    datasets={"train": {"x": list(range(10))}}).fit()
"""


def test_a_dataset_of_the_trainer(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AF_")}
    done = subprocess.run(
        [sys.executable, "-c", LOOP],
        env={**environment, "PYTHONPATH": str(ROOT / "python"), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n")[:3] == ["True", "True", "1 None"], done.stderr
