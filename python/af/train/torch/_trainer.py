# SPDX-License-Identifier: Apache-2.0
"""TorchTrainer: runs a training function in this rank."""

import inspect
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

from .. import _config
from .._config import RunConfig, ScalingConfig
from .._context import Result
from .._run import Run
from .._session import say, session
from . import _device


@dataclass
class TorchConfig:
    """``backend``: "nccl" or "gloo" for GPUs; None lets af choose, as it does for host memory."""

    backend: Optional[str] = None
    init_method: str = "env"
    timeout_s: int = 1800


class TorchTrainer:
    """Data-parallel training on the GPUs of the job.

    Every rank is a process that runs the whole program, up to ``fit()``. Code behind ``fit()`` runs
    on rank 0 only.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., None],
        *,
        train_loop_config: Optional[Dict] = None,
        torch_config: Optional[TorchConfig] = None,
        scaling_config: Optional[ScalingConfig] = None,
        run_config: Optional[RunConfig] = None,
        datasets: Optional[Dict[str, Any]] = None,
        dataset_config: Optional[Any] = None,
        metadata: Optional[Dict[str, Any]] = None,
        resume_from_checkpoint=None,
    ):
        if not callable(train_loop_per_worker):
            raise TypeError(f"train_loop_per_worker={train_loop_per_worker!r} is not a function")
        if _needed_arguments(train_loop_per_worker) > 1:
            raise ValueError("train_loop_per_worker takes no argument, or one: the config")
        self._function = train_loop_per_worker
        self._config = train_loop_config
        self._torch = torch_config or TorchConfig()
        self._scaling = scaling_config or ScalingConfig()
        self._run_config = run_config or RunConfig()
        self._datasets = datasets or {}
        self._metadata = metadata
        self._resume_from = resume_from_checkpoint

    def fit(self):
        """Trains. Returns the Result on rank 0; the other ranks end within, with exit code 0.

        What the training function raises comes out of it, and ends the rank; af-launch then starts
        the program again as often as ``max_failures`` allows.
        """
        current = session()
        if current.run is not None:
            raise RuntimeError("a program can call fit() once")
        device = _device.choose(self._scaling.use_gpu)
        if self._torch.backend and device.type == "cuda":
            os.environ.setdefault("AF_TORCH_BACKEND", self._torch.backend)
        run = Run(
            current, self._run_config, self._config, self._scaling.use_gpu, self._resume_from
        )
        run.device, run.datasets, run.metadata = device, self._datasets, self._metadata
        current.run = run
        current.on_world(lambda world: self._greet(world))
        self._call()
        current.finish()
        return Result(
            metrics=run.history[-1] if run.history else None,
            checkpoint=run.checkpoint or run.get_checkpoint(),
            path=run.directory,
            best_checkpoints=run.best,
            _history=run.history,
        )

    def _call(self):
        if _needed_arguments(self._function) or (self._config is not None and _takes_one(self._function)):
            self._function(self._config if self._config is not None else {})
        else:
            self._function()

    def _greet(self, world):
        """As soon as there is a world."""
        world.send(
            {"op": "options", "max_failures": self._run_config.failure_config.max_failures}
        )
        line = _config.workers_line(self._scaling, world.size)
        if line and world.rank == 0:
            say(line)


def _parameters(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds]


def _needed_arguments(function):
    return sum(p.default is inspect.Parameter.empty for p in _parameters(function))


def _takes_one(function):
    return len(_parameters(function)) >= 1
