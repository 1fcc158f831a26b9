# SPDX-License-Identifier: Apache-2.0
"""Training PyTorch models on all GPUs of a job, with the names that Ray Train has.

    import af.train.torch
    from af.train import ScalingConfig
    from af.train.torch import TorchTrainer

    def train_func():
        model = af.train.torch.prepare_model(net)
        loader = af.train.torch.prepare_data_loader(loader)
        ...

    TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=(1, 4), use_gpu=True)).fit()
"""

import random

import torch

from . import _loader, _optimizers
from ._ddp import DataParallel
from ._device import get_device, get_devices
from ._trainer import TorchConfig, TorchTrainer

__all__ = [
    "DataParallel",
    "TorchConfig",
    "TorchTrainer",
    "backward",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
    "prepare_optimizer",
]

_optimizers.install()


def prepare_model(
    model, move_to_device=True, parallel_strategy="ddp", parallel_strategy_kwargs=None
):
    """The model on this rank's device, with gradients averaged over all ranks.

    `move_to_device`: True, False or a device. `parallel_strategy`: "ddp"; "fsdp" in a job of a
    fixed size; None leaves the model as it is. `parallel_strategy_kwargs` are FullyShardedData-
    Parallel's; for "ddp" there are none to give.
    """
    if isinstance(move_to_device, (torch.device, str)):
        device = torch.device(move_to_device)
    else:
        device = get_device()
    if move_to_device:
        model = model.to(device)
    if not parallel_strategy:
        return model
    if parallel_strategy == "fsdp":
        from ._fsdp import shard

        return shard(model, device, parallel_strategy_kwargs or {})
    if parallel_strategy != "ddp":
        raise ValueError(f'parallel_strategy={parallel_strategy!r}: "ddp", "fsdp" or None')
    return DataParallel(model, device)


def prepare_data_loader(
    data_loader, add_dist_sampler=True, move_to_device=True, auto_transfer=True, *, batch="global"
):
    """The loader with its rows dealt over the ranks, and its batches on this rank's device.

    `batch`: "global": the loader's batch_size is that of a step over all ranks, so that a training
    is the same at every world size; "rank": it is that of each rank, as in Ray. Each epoch has an
    order of its own, without set_epoch(). `auto_transfer` has no effect: batches from pinned memory
    are always copied in the background.
    """
    device = get_device() if move_to_device else None
    return _loader.prepare(data_loader, add_dist_sampler, device, batch)


def prepare_optimizer(optimizer):
    """The optimizer, as it is."""
    return optimizer


def backward(tensor):
    """tensor.backward()."""
    tensor.backward()


def enable_reproducibility(seed=0):
    """Seeds torch, random and numpy, and has torch use deterministic algorithms."""
    import os

    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy

        numpy.random.seed(seed)
    except ImportError:
        pass
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
