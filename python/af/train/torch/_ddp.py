# SPDX-License-Identifier: Apache-2.0
"""Data parallelism that outlives its world."""

import contextlib
import copy

import torch
from torch import nn
from torch.autograd import Variable

from ... import _native
from ..._native import CommunicatorError
from .._session import session
from ._buckets import buckets_of
from ._state import ModelState

_PREFIX = "module."


def _the_model(module):
    return module


class DataParallel(nn.Module):
    """A model whose gradients are averaged over all ranks at the end of each backward pass.

    The average is by rows, not by ranks: a rank with fewer rows of a batch counts less. When the
    world changes, `backward()` forms the next one and goes on; the program sees nothing of it.
    ``module`` is the model itself. Keys of ``state_dict()`` are the model's own, whatever the
    world's size.
    """

    def __init__(self, module, device):
        super().__init__()
        self.module = module
        self.device = device
        self.buckets = None
        self._generation = None
        self._queued = False
        self._synchronizes = True
        for p in module.parameters():
            if p.requires_grad:
                p.register_hook(self._gradient_comes)
        current = session()
        if current.models is None:
            current.models = ModelState(current)
        current.models.add(self)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    # A copy, and what is pickled, is the model alone: the memory of the ranks cannot be copied.
    def __deepcopy__(self, memo):
        return copy.deepcopy(self.module, memo)

    def __reduce__(self):
        return _the_model, (self.module,)

    def forward(self, *args, **kwargs):
        self._queued = False  # a backward pass that failed may have left it
        if self.training and torch.is_grad_enabled():
            self._be_ready()
        return self.module(*args, **kwargs)

    def _be_ready(self):
        current = session()
        if current.catching_up:
            return
        current.between_steps()
        current.enter(state=True)
        while self._generation != current.world.generation:
            try:
                current.models.sync_late(self)
            except CommunicatorError as error:
                if not current.recoverable(error):
                    raise
                current.enter(state=True, error=error)

    def state_dict(self, *args, **kwargs):
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict, *args, **kwargs):
        """Takes the keys of the model, and those of a DistributedDataParallel ("module.…")."""
        own = self.module.state_dict()
        if state_dict and all(key.startswith(_PREFIX) and key not in own for key in state_dict):
            state_dict = {key[len(_PREFIX) :]: value for key, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes within add up local gradients; the next one outside averages them."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def tensors(self):
        return [p.data for p in self.module.parameters()] + list(self.module.buffers())

    def place(self, channel):
        """Memory for the gradients in this world. Collective."""
        current = session()
        if current.world.size > 1:
            if self.buckets is None:
                self.buckets = buckets_of(self.module.parameters())
            for bucket in self.buckets:
                bucket.place(channel)
        self._generation = current.world.generation

    # --- The end of a backward pass

    def _gradient_comes(self, gradient):
        if not self._queued and self._synchronizes:
            self._queued = True
            Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self):
        self._queued = False
        current = session()
        if current.catching_up:
            return
        target, error, gathered = current.steps + 1, None, False
        current.in_backward = True
        try:
            while True:
                try:
                    current.enter(state=True, error=error)
                    if current.steps >= target:  # others had completed it: its state has come
                        self._forget()
                        return
                    if current.world.size == 1 and not gathered:
                        flags = current.world.flags()
                        change = flags & _native.FLAG_CHANGE
                        save = flags & _native.FLAG_SAVE
                    else:
                        change, save = self._reduce(gathered)
                    break
                except CommunicatorError as failure:
                    if not current.recoverable(failure):
                        raise
                    error, gathered = failure, self.buckets is not None
            current.step_completed(change, save)
        finally:
            current.in_backward = False

    def _forget(self):
        for bucket in self.buckets or ():
            bucket.forget()

    def _reduce(self, gathered):
        """Returns the sums of the flags."""
        current = session()
        world = current.world
        mine, total = current.weight or (1, world.size)
        scale = mine / total
        asked = world.flags()
        change = 1.0 if asked & _native.FLAG_CHANGE else 0.0
        save = 1.0 if asked & _native.FLAG_SAVE else 0.0
        with torch.no_grad():
            if not gathered:
                for bucket in self.buckets:
                    bucket.gather()
            last = self.buckets[-1]
            channel = current.models.channel()
            if last.carries_flags:
                last.write_flags(total, change, save)
            for bucket in self.buckets:
                bucket.reduce(channel, scale)
            if last.carries_flags:
                rows, change, save = last.read_flags()
            else:
                rows, change, save = current.sum([mine, change, save])
            factor = 1.0 if abs(rows - total) < 0.25 or rows <= 0 else total / rows
            for bucket in self.buckets:
                bucket.finish(factor)
        return change, save
