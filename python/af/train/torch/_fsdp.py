# SPDX-License-Identifier: Apache-2.0
"""FullyShardedDataParallel of torch, in jobs of a fixed size.

Torch shards, gathers and reduces; af gives it a process group, makes its gradients those of the mean
over the rows of all ranks, and counts the steps.
"""

import os

import torch

try:  # since PyTorch 2.0
    from torch.optim.optimizer import register_optimizer_step_post_hook
except ImportError:
    register_optimizer_step_post_hook = None

from .._session import session
from ._channel import GroupChannel, backend_for


def shard(model, device, options):
    """Every rank keeps its share of the parameters. The world must not change."""
    current = session()
    world = current.world
    if world.elastic:
        raise RuntimeError(
            'parallel_strategy="fsdp" needs a fixed number of GPUs, each holds a share of the model: '
            "submit with --af-n-workers in place of --af-max-workers"
        )
    if device.type == "cpu" and register_optimizer_step_post_hook is None:
        raise RuntimeError(
            f'parallel_strategy="fsdp" on the CPU needs PyTorch 2, this is {torch.__version__}: '
            "use GPUs, or a newer PyTorch"
        )
    from torch.distributed.fsdp import FullyShardedDataParallel

    if getattr(current, "group", None) is None:
        current.group = _group(world, device)
    sharded = FullyShardedDataParallel(model, device_id=device, **options)
    _weigh_by_rows(sharded, current)
    _count_steps(sharded, current)
    return sharded


def group_backend(device, environment):
    """Of torch.distributed: af's own collectives are none of its backends. Pure."""
    backend = backend_for(device, environment)
    if backend != "local":
        return backend
    return "nccl" if device.type == "cuda" else "gloo"


def _group(world, device):
    backend = group_backend(device, {**os.environ, **world.environment})
    if world.size > 1 or os.environ.get("AF_SOCKET"):
        return GroupChannel(world, backend, device)
    import torch.distributed as dist

    # Alone, without a launcher: nobody to meet.
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


def _weigh_by_rows(sharded, current):
    """Torch averages over ranks. Their shares of a batch may differ by a row, or be of none."""

    def weigh(module, args, output):
        if current.weight is None or not torch.is_grad_enabled():
            return
        rows, all_rows = current.weight
        factor = rows * current.world.size / all_rows
        if factor == 1:
            return
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: gradient * factor)

    sharded.register_forward_hook(weigh)


def _tensors(output):
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)


def _count_steps(sharded, current):
    """A step is over when an optimizer has used the gradients of a forward pass."""
    pending = False

    def begun(module, args):
        nonlocal pending
        pending = pending or torch.is_grad_enabled()

    def done(optimizer, args, kwargs):
        nonlocal pending
        if pending and any(id(p) in shares for g in optimizer.param_groups for p in g["params"]):
            pending = False
            current.step_completed(change=False, save=False)

    shares = {id(p) for p in sharded.parameters()}
    sharded.register_forward_pre_hook(begun)
    if register_optimizer_step_post_hook is not None:
        register_optimizer_step_post_hook(done)
