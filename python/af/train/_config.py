# SPDX-License-Identifier: Apache-2.0
"""The settings of a training; names, order and defaults are those of Ray Train."""

import os
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from ._session import say


def _say_without_effect(config, *names):
    """A line for each setting of these that is given and changes nothing here."""
    for name in names:
        value = getattr(config, name)
        if value and value != type(config).__dataclass_fields__[name].default:
            say(f"{type(config).__name__}({name}=…) has no effect here")


@dataclass
class ScalingConfig:
    """How many ranks there should be, and whether each has a GPU.

    The ranks are there before the program starts: af-launch and the options of the job
    (``--af-n-workers``, ``--af-max-workers``) decide. ``num_workers``, a number or (min, max), is
    compared with that; a difference is said in one line. What places Ray's workers
    (``placement_strategy``, ``resources_per_worker``, …) is accepted and has no effect.
    """

    trainer_resources: Optional[dict] = None
    num_workers: Union[int, Tuple[int, int]] = 1
    use_gpu: bool = False
    resources_per_worker: Optional[Dict[str, float]] = None
    placement_strategy: str = "PACK"
    accelerator_type: Optional[str] = None
    elastic_resize_monitor_interval_s: float = 60.0
    use_tpu: bool = False
    topology: Optional[str] = None
    label_selector: Optional[Any] = None

    def __post_init__(self):
        given = self.num_workers
        if not isinstance(given, int) and not (isinstance(given, (tuple, list)) and len(given) == 2):
            raise ValueError(f"num_workers={given!r}: a number or (min, max) is needed")
        low, high = self.min_workers, self.max_workers
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in (low, high)):
            raise ValueError(f"num_workers={self.num_workers!r}: a number or (min, max) is needed")
        if not 1 <= low <= high:
            raise ValueError(f"num_workers={self.num_workers!r}: at least 1, and min at most max")
        if self.use_tpu:
            raise ValueError("use_tpu=True: there are no TPUs on a Slurm cluster; use use_gpu=True")

    @property
    def min_workers(self):
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def max_workers(self):
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    @property
    def total_workers(self):
        return self.max_workers


@dataclass
class FailureConfig:
    """``max_failures``: how often the program may fail by its own fault and be started again.

    -1: any number of times. A GPU that is taken back never counts. af-launch does the starting.
    """

    max_failures: int = 0
    fail_fast: Union[bool, str] = False
    controller_failure_limit: int = -1

    def __post_init__(self):
        if not isinstance(self.max_failures, int) or self.max_failures < -1:
            raise ValueError(f"max_failures={self.max_failures!r}: a number from -1 is needed")
        _say_without_effect(self, "fail_fast", "controller_failure_limit")


@dataclass
class CheckpointConfig:
    """``num_to_keep``: how many checkpoints stay on disk; None: all.

    With ``checkpoint_score_attribute``, a key of the reported metrics, the best stay instead of the
    newest (``checkpoint_score_order``: "max" or "min"); the newest stays as well.
    """

    num_to_keep: Optional[int] = None
    checkpoint_score_attribute: Optional[str] = None
    checkpoint_score_order: Optional[str] = "max"
    checkpoint_frequency: Optional[int] = 0
    checkpoint_at_end: Optional[bool] = None

    def __post_init__(self):
        if self.num_to_keep is not None and self.num_to_keep < 1:
            raise ValueError(f"num_to_keep={self.num_to_keep}: at least 1, or None for all")
        if self.checkpoint_score_order not in ("max", "min"):
            raise ValueError(f"checkpoint_score_order={self.checkpoint_score_order!r}: max or min")
        _say_without_effect(self, "checkpoint_frequency", "checkpoint_at_end")


@dataclass
class RunConfig:
    """``storage_path``/``name`` is the directory of the run's checkpoints.

    Without a name it is the run's id (AF_RUN_ID), which stays the same when Slurm starts the job
    again. Without a path: AF_CHECKPOINT_DIR under af-launch, else ~/af_results.
    ``verbose=0``: no progress lines.
    """

    name: Optional[str] = None
    storage_path: Optional[str] = None
    storage_filesystem: Optional[Any] = None
    failure_config: Optional[FailureConfig] = None
    checkpoint_config: Optional[CheckpointConfig] = None
    sync_config: Optional[Any] = None
    verbose: Optional[int] = None
    stop: Optional[Any] = None
    callbacks: Optional[List[Any]] = None
    progress_reporter: Optional[Any] = None
    log_to_file: Union[bool, str, Tuple[str, str]] = False
    worker_runtime_env: Optional[dict] = None
    logging_config: Optional[Any] = None

    def __post_init__(self):
        self.failure_config = self.failure_config or FailureConfig()
        self.checkpoint_config = self.checkpoint_config or CheckpointConfig()
        if self.storage_filesystem is not None or "://" in str(self.storage_path or ""):
            raise ValueError(
                f"storage_path={self.storage_path!r}: af stores to a directory that all nodes see"
            )
        _say_without_effect(
            self, "stop", "callbacks", "sync_config", "progress_reporter", "log_to_file",
            "worker_runtime_env", "logging_config",
        )

    def directory(self, environment=os.environ):
        """Where the checkpoints of this run are."""
        path = self.storage_path
        if path is None and environment.get("AF_CHECKPOINT_DIR"):
            return os.path.join(environment["AF_CHECKPOINT_DIR"], self.name or "")
        if path is None:
            path = os.path.join("~", "af_results")
        return os.path.join(
            os.path.abspath(os.path.expanduser(str(path))), self.name or run_id(environment)
        )


def run_id(environment=os.environ):
    for name in ("AF_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        if environment.get(name) and environment[name] != "none":
            return f"run-{environment[name]}" if name != "AF_RUN_ID" else environment[name]
    return time.strftime("run-%Y-%m-%d_%H-%M-%S")


@dataclass
class DataConfig:
    """Accepted for Ray's sake: every dataset is dealt over all ranks."""

    datasets_to_split: Union[str, List[str]] = "all"
    execution_options: Optional[Any] = None


@dataclass(frozen=True)
class PreemptionInfo:
    """GPUs of this world that are going to be taken, and when.

    ``deadline_ms``: UNIX time in milliseconds, or None if it is not known.
    ``preempted_node_to_ranks``: the ranks that lose theirs, by host.
    """

    deadline_ms: Optional[int]
    preempted_node_to_ranks: Dict[str, List[int]]

    @property
    def preempted_node_ids(self):
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self):
        return sorted({r for ranks in self.preempted_node_to_ranks.values() for r in ranks})


def workers_line(scaling, world_size, environment=os.environ):
    """What is wrong between num_workers and the world there is: a line, or None. Pure."""
    low, high = scaling.min_workers, scaling.max_workers
    asked = str(low) if low == high else f"{low} to {high}"
    most = environment.get("AF_MAX_WORKERS")
    if not environment.get("AF_SOCKET"):
        if world_size == 1 and low > 1:
            return (
                f"num_workers={asked}, but this is one process: training on 1. "
                f"For more, start it with af-launch in a job with --af-n-workers={high}"
            )
        return None
    if environment.get("AF_ELASTIC") == "1" and most:
        if int(most) < low:
            return f"num_workers={asked}, but the job has --af-max-workers={most}: training on those"
        if low == high and low != 1:
            return (
                f"num_workers={asked} is a fixed number, but the job has --af-max-workers={most}: "
                f"training on 1 to {most}; for exactly {asked} use --af-n-workers={asked}"
            )
        return None
    if not low <= world_size <= high:
        return f"num_workers={asked}, but the job has {world_size}: training on {world_size}"
    return None


TrainLoop = Callable[..., None]
