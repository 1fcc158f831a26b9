# SPDX-License-Identifier: Apache-2.0
"""FullyShardedDataParallel of torch, in jobs of a fixed size."""

from .._session import session
from ._channel import GroupChannel, backend_for


def shard(model, device, options):
    """Every rank keeps its share of the parameters. The world must not change."""
    import os

    world = session().world
    if world.elastic:
        raise RuntimeError(
            'parallel_strategy="fsdp" needs a fixed number of GPUs, each holds a share of the model: '
            "submit with --af-n-workers in place of --af-max-workers"
        )
    if device.type != "cuda":
        raise RuntimeError('parallel_strategy="fsdp" needs GPUs: set use_gpu=True')
    from torch.distributed.fsdp import FullyShardedDataParallel

    backend = backend_for(device, {**os.environ, **world.environment})
    session().group = GroupChannel(world, "nccl" if backend == "local" else backend, device)
    return FullyShardedDataParallel(model, device_id=device, **options)
