# SPDX-License-Identifier: Apache-2.0
"""How tensors of a world travel: over af's collectives in host memory, or over torch.distributed.

A channel belongs to one generation. Every failure is a CommunicatorError, so that a training does
not care which one it is.
"""

import atexit
import ctypes
import os
import time
from datetime import timedelta

import torch

from ... import _gloo_threads, _native
from ..._native import CommunicatorError
from ._buckets import tensor_at, type_name

# As our sitecustomize does, which one of the person's own may hide.
atexit.register(_gloo_threads.settle)


def backend_for(device, environment):
    """"local" (af's own, through host memory) or a backend of torch.distributed. Pure."""
    if environment.get("AF_TORCH_BACKEND"):
        return environment["AF_TORCH_BACKEND"]
    if device.type == "cuda" and environment.get("AF_BACKEND", "nccl") == "nccl":
        return "nccl"
    return "local"


def open_channel(session, device):
    world = session.world
    environment = {**os.environ, **world.environment}
    backend = backend_for(device, environment)
    if world.size == 1 or backend == "local":
        return HostChannel(world)
    return GroupChannel(world, backend, device)


class HostChannel:
    """af's communicator. Tensors of a GPU are copied to host memory and back."""

    name = "local"

    def __init__(self, world):
        self._communicator = world.communicator() if world.size > 1 else None
        self._rank, self._size = world.rank, world.size

    def allocate(self, count, dtype, device):
        """A flat tensor for all_reduce. Collective."""
        if device.type != "cpu":
            return torch.zeros(count, dtype=dtype, device=device)
        return self._host(count, dtype)

    def _host(self, count, dtype):
        if self._communicator is None:
            return torch.zeros(count, dtype=dtype)
        size = count * torch.empty((), dtype=dtype).element_size()
        return tensor_at(self._communicator.allocate(max(size, 8)), dtype, count)

    def all_reduce(self, local, total, scale):
        if self._communicator is None:
            torch.mul(local.all, scale, out=total.all)
            return
        if local.all.device.type == "cpu":
            self._communicator.all_reduce(
                local.address, total.address, local.length, local.type_name, pre_scale=scale
            )
            return
        for flat in (local, total):
            if flat.host is None:
                flat.host = self._host(flat.length, flat.all.dtype)
        local.host.copy_(local.all)
        self._communicator.all_reduce(
            local.host.data_ptr(),
            total.host.data_ptr(),
            local.length,
            local.type_name,
            pre_scale=scale,
        )
        total.all.copy_(total.host)

    def broadcast(self, tensor, root, receive=True):
        """Of any type and device; `receive=False`: this rank takes part and keeps what it has."""
        if self._communicator is None or tensor.numel() == 0:
            return
        size = tensor.numel() * tensor.element_size()
        sends = self._rank == root
        direct = tensor.device.type == "cpu" and tensor.is_contiguous()
        if not sends and not receive:
            buffer = torch.empty(size, dtype=torch.uint8)
        elif direct:
            buffer = tensor
        elif sends:
            buffer = tensor.detach().cpu().contiguous()
        else:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._communicator.broadcast(buffer.data_ptr(), buffer.data_ptr(), size, "uint8", root)
        if not sends and receive and not direct:
            with torch.no_grad():
                tensor.copy_(buffer)

    def close(self):
        pass


class GroupChannel:
    """A process group of torch.distributed that lives as long as the world.

    The ranks meet through the agent, under a name of the generation: no port is needed, and a
    world that could not be formed leaves nothing behind that the next one would trip over.
    """

    def __init__(self, world, backend, device):
        import torch.distributed as dist

        if not os.environ.get("AF_SOCKET"):
            raise RuntimeError(f"{backend} needs af-launch: AF_SOCKET is not set")
        self.name, self._dist, self._world = backend, dist, world
        self._device = device
        # Errors come to us; nothing may end the process.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        os.environ.setdefault("NCCL_ASYNC_ERROR_HANDLING", "0")
        if dist.is_initialized():
            dist.destroy_process_group()
        seconds = float(os.environ.get("AF_COLLECTIVE_TIMEOUT", "600"))
        self._table = _agent_store(world, seconds)  # C++ keeps half of it only
        self._store = dist.PrefixStore(f"af-{world.generation}", self._table)
        try:
            dist.init_process_group(
                backend,
                store=self._store,
                rank=world.rank,
                world_size=world.size,
                timeout=timedelta(seconds=seconds),
                group_name=f"af-{world.generation}",
            )
        except Exception as error:
            raise CommunicatorError(f"{backend}: {error}", _native.SYSTEM) from error

    def allocate(self, count, dtype, device):
        return torch.zeros(count, dtype=dtype, device=device)

    def all_reduce(self, local, total, scale):
        torch.mul(local.all, scale, out=total.all)
        self._wait(lambda: self._dist.all_reduce(total.all, async_op=True))

    def broadcast(self, tensor, root, receive=True):
        if tensor.numel() == 0:
            return
        sends = self._world.rank == root
        # NCCL takes tensors of the GPU only; types that it lacks travel as bytes.
        buffer = tensor.detach().to(self._device, copy=not sends).contiguous()
        raw = buffer.reshape(-1).view(torch.uint8)
        self._wait(lambda: self._dist.broadcast(raw, root, async_op=True))
        if not sends and receive:
            with torch.no_grad():
                tensor.copy_(buffer)

    def _wait(self, start):
        try:
            work = start()
            pause = 2e-5
            while not work.is_completed():
                if self._world.agreed() & _native.FLAG_LOST:
                    raise CommunicatorError("the world is lost", _native.ABORTED)
                time.sleep(pause)
                pause = min(pause * 1.5, 2e-3)
            work.wait()
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()
        except CommunicatorError:
            raise
        except RuntimeError as error:
            raise CommunicatorError(f"{self.name}: {error}", _native.PEER_LOST) from error

    def close(self):
        dist = self._dist
        if not dist.is_initialized():
            return
        group = dist.distributed_c10d._get_default_group()
        try:
            if self._device.type == "cuda":
                backend = group._get_backend(self._device)
                getattr(backend, "abort", getattr(backend, "_abort", lambda: None))()
        except Exception:
            pass  # it is broken already
        try:
            dist.destroy_process_group()
        except Exception:
            pass


def _agent_store(world, seconds):
    import torch.distributed as dist

    class AgentStore(dist.Store):
        """The agent's table as a store of torch.distributed. Values travel as hexadecimal text."""

        def __init__(self):
            super().__init__()
            self._lib = _native.library()
            self._handle = ctypes.c_void_p()
            _native.check(
                self._lib.af_store_session(
                    os.environ["AF_SOCKET"].encode(), ctypes.byref(self._handle)
                )
            )
            self._seconds = seconds
            self._added = {}

        def __del__(self):
            if self._handle:
                self._lib.af_store_release(self._handle)
                self._handle = None

        def set(self, key, value):
            data = value.encode() if isinstance(value, str) else bytes(value)
            text = data.hex().encode() or b"-"
            _native.check(self._lib.af_store_set(self._handle, key.encode(), text))

        def get(self, key, seconds=None):
            limit = int(1000 * (self._seconds if seconds is None else seconds))
            buffer = ctypes.create_string_buffer(1 << 16)
            _native.check(
                self._lib.af_store_get(self._handle, key.encode(), limit, buffer, len(buffer))
            )
            text = buffer.value
            return b"" if text == b"-" else bytes.fromhex(text.decode())

        def wait(self, keys, timeout=None):
            for key in keys:
                self.get(key, None if timeout is None else timeout.total_seconds())

        def check(self, keys):
            try:
                for key in keys:
                    self.get(key, 0.001)
            except CommunicatorError:
                return False
            return True

        def add(self, key, amount):
            # The table has no counters: each rank keeps its own part of the sum under its number.
            mine = self._added.get(key, 0) + amount
            if amount:
                self._added[key] = mine
                self.set(f"{key}/{world.rank}", str(mine))
            total = 0
            for rank in range(world.size):
                try:
                    total += mine if rank == world.rank else int(self.get(f"{key}/{rank}", 0.001))
                except CommunicatorError:
                    pass
            return total

        def set_timeout(self, timeout):
            self._seconds = timeout.total_seconds()

        def delete_key(self, key):
            return False

        def num_keys(self):
            return 0

    return AgentStore()


__all__ = ["GroupChannel", "HostChannel", "backend_for", "open_channel", "type_name"]
