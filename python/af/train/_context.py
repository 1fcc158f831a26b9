# SPDX-License-Identifier: Apache-2.0
"""What a training function may ask for, and what fit() returns."""

import os
import socket
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from ._checkpoint import Checkpoint
from ._config import PreemptionInfo
from ._session import session


class TrainingFailedError(RuntimeError):
    """Kept for programs that name it; fit() raises what the training function raised."""


@dataclass
class Result:
    """What fit() returns on rank 0.

    ``metrics``: of the last report. ``checkpoint``: the newest. ``path``: the run's directory.
    ``best_checkpoints``: (checkpoint, metrics) of each report with one, in order.
    """

    metrics: Optional[Dict[str, Any]]
    checkpoint: Optional[Checkpoint]
    error: Optional[Exception] = None
    path: Optional[str] = None
    best_checkpoints: Optional[List[Tuple[Checkpoint, Dict[str, Any]]]] = None
    _history: List[Dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def metrics_dataframe(self):
        """The metrics of all reports, one a row; needs pandas."""
        import pandas

        return pandas.DataFrame(self._history)

    def get_best_checkpoint(self, metric, mode):
        if mode not in ("max", "min"):
            raise ValueError(f"mode={mode!r}: max or min")
        with_it = [pair for pair in self.best_checkpoints or [] if metric in pair[1]]
        if not with_it:
            raise RuntimeError(f"no report with a checkpoint has the metric {metric!r}")
        return (max if mode == "max" else min)(with_it, key=lambda pair: pair[1][metric])[0]


class TrainContext:
    """Who this rank is. The numbers change when the world does."""

    def _number(self, name, default):
        world = session().world
        return int(world.environment.get(name) or os.environ.get(name) or default)

    def get_world_rank(self):
        return session().world.rank

    def get_world_size(self):
        return session().world.size

    def get_local_rank(self):
        """Its place on the node (not its device number, which is 0 on MIG instances)."""
        return self._number("AF_LOCAL_RANK", self._number("LOCAL_RANK", 0))

    def get_local_world_size(self):
        return self._number("LOCAL_WORLD_SIZE", 1)

    def get_node_rank(self):
        return self._number("GROUP_RANK", 0)

    def get_experiment_name(self):
        return os.path.basename(_run().directory.rstrip("/"))

    get_trial_name = get_experiment_name
    get_trial_id = get_experiment_name

    def get_trial_dir(self):
        return _run().directory

    def get_trial_resources(self):
        return None

    def get_metadata(self):
        return dict(getattr(_run(), "metadata", None) or {})

    def get_storage(self):
        """An object whose ``storage_fs_path`` and ``experiment_fs_path`` say where checkpoints go."""
        return _Storage(_run().directory)


@dataclass
class _Storage:
    experiment_fs_path: str

    @property
    def storage_fs_path(self):
        return os.path.dirname(self.experiment_fs_path)

    @property
    def experiment_dir_name(self):
        return os.path.basename(self.experiment_fs_path)


_context = TrainContext()


def _run():
    run = session().run
    if run is None:
        raise RuntimeError("this can be asked within a training function only: see TorchTrainer.fit()")
    return run


def report(
    metrics: Dict[str, Any],
    checkpoint: Optional[Checkpoint] = None,
    checkpoint_dir_name: Optional[str] = None,
    checkpoint_upload_mode=None,
    delete_local_checkpoint_after_upload: Optional[bool] = None,
    checkpoint_upload_fn=None,
    validation=False,
):
    """Reports metrics, and saves a checkpoint if there is one. All ranks have to call it.

    It returns when the checkpoint is complete on disk: in the run's directory, whole or not at all.
    The metrics of rank 0 count. Any rank may have a checkpoint; if several have, their files are
    put together. When the world is to grow, it does so here. A rank that does not come is named
    after AF_COLLECTIVE_TIMEOUT.
    """
    if validation:
        raise NotImplementedError("report(validation=…): validate in the training function")
    if checkpoint_upload_fn is not None:
        raise NotImplementedError("report(checkpoint_upload_fn=…): af stores to a directory itself")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"checkpoint={checkpoint!r}: use Checkpoint.from_directory(path)")
    _run().report(metrics, checkpoint, checkpoint_dir_name)


def get_checkpoint() -> Optional[Checkpoint]:
    """The newest good checkpoint of this run, or None: what a training function starts from."""
    return _run().get_checkpoint()


def get_context() -> TrainContext:
    _run()
    return _context


def get_preemption_info() -> Optional[PreemptionInfo]:
    """What is known about GPUs that are going to be taken, or None.

    Nothing needs to be done about it: the training goes on without them, or is saved.
    """
    world = session().world
    notice = world.notice()
    if not notice:
        return None
    deadline = notice.get("deadline")
    ranks = list(range(world.size)) if notice.get("all") else [world.rank]
    return PreemptionInfo(
        deadline_ms=None if deadline is None else int(deadline * 1000),
        preempted_node_to_ranks={socket.gethostname(): ranks},
    )


def get_dataset_shard(dataset_name: Optional[str] = None):
    """This rank's share of a dataset that was given to the trainer; None if none was."""
    run = _run()
    datasets = getattr(run, "datasets", None)
    if not datasets:
        return None
    if dataset_name is None and len(datasets) == 1:
        dataset_name = next(iter(datasets))
    if dataset_name not in datasets:
        raise KeyError(f"get_dataset_shard({dataset_name!r}): there are {', '.join(sorted(datasets))}")
    shards = run.__dict__.setdefault("shards", {})
    if dataset_name not in shards:
        from .torch._shard import DataShard

        shards[dataset_name] = DataShard(datasets[dataset_name], dataset_name)
    return shards[dataset_name]
