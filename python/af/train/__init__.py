# SPDX-License-Identifier: Apache-2.0
"""Training on all GPUs of a job, with the names that Ray Train has.

Importing it tells af-launch that this program can go on when its world changes.
"""

from .. import _world
from .._native import CommunicatorError
from ._checkpoint import Checkpoint
from ._config import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    PreemptionInfo,
    RunConfig,
    ScalingConfig,
)
from ._context import (
    Result,
    TrainContext,
    TrainingFailedError,
    get_checkpoint,
    get_context,
    get_dataset_shard,
    get_preemption_info,
    report,
)

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "CommunicatorError",
    "DataConfig",
    "FailureConfig",
    "PreemptionInfo",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "TrainContext",
    "TrainingFailedError",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "report",
]

_world.open_early()
