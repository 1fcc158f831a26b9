# SPDX-License-Identifier: Apache-2.0
"""Parameters, buffers and optimizers of a training: sending them to ranks, saving them."""

import pickle
import struct

import torch

from .._session import say
from ._channel import open_channel
from ._optimizers import optimizers_of


class _Slot:
    """Stands for a tensor that travels on its own."""

    def __init__(self, tensor):
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)


def _take_tensors(value, found):
    """`value` with its tensors replaced by slots; the tensors go to `found`."""
    if isinstance(value, torch.Tensor):
        found.append(value.detach())
        return _Slot(value)
    if isinstance(value, dict):
        return {key: _take_tensors(entry, found) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_take_tensors(entry, found) for entry in value])
    return value


def _put_tensors(value, tensors):
    if isinstance(value, _Slot):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _put_tensors(entry, tensors) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_put_tensors(entry, tensors) for entry in value])
    return value


def _slots(value):
    if isinstance(value, _Slot):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _slots(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _slots(entry)


class ModelState:
    """All prepared models of this rank."""

    def __init__(self, session):
        self._session = session
        self.models = []
        self._channel = None
        self._ids = frozenset()

    def add(self, model):
        self.models.append(model)
        self._ids = frozenset(id(p) for m in self.models for p in m.module.parameters())

    def parameter_ids(self):
        return self._ids

    def channel(self):
        if self._channel is None:
            self._channel = open_channel(self._session, self.models[0].device)
        return self._channel

    def world_changed(self):
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # --- A world

    def sync(self, session, verdict, told):
        """Collective, once in a world: memory for the gradients, and the state to who lacks it."""
        world = session.world
        if verdict.fresh and told.get("snapshot") and world.rank == 0:
            self.read(session.snapshot)
        channel = self.channel()
        for model in self.models:
            model.place(channel)
        if world.size == 1:
            return
        whole = not verdict.fresh or told.get("snapshot")
        receive = world.rank in verdict.receivers
        if verdict.receivers and whole:
            self._send_all(channel, verdict, told, receive)
        elif verdict.receivers:
            self._send_tensors(channel, self._tensors(), verdict.source, receive)

    def sync_late(self, model):
        """A model that was prepared after the first step."""
        model.place(self.channel())
        if self._session.world.size > 1:
            self._send_tensors(self.channel(), model.tensors(), 0, True)

    def _tensors(self):
        return [t for model in self.models for t in model.tensors()]

    def _send_tensors(self, channel, tensors, source, receive):
        for tensor in tensors:
            channel.broadcast(tensor, source, receive)

    def _send_all(self, channel, verdict, told, receive):
        session, source = self._session, verdict.source
        sends = session.world.rank == source
        optimizers = optimizers_of(self)
        tensors, head = [], b""
        if sends:
            rest = {"optimizers": [o.state_dict() for o in optimizers], "gradients": None}
            if not told["stepped"]:
                # Gradients that no optimizer has used yet are part of the state.
                rest["gradients"] = [p.grad for m in self.models for p in m.module.parameters()]
            head = pickle.dumps(_take_tensors(rest, tensors))
        size = session.broadcast_bytes(struct.pack("<q", len(head)), 8, source)
        head = session.broadcast_bytes(head, struct.unpack("<q", size)[0], source)
        self._send_tensors(channel, self._tensors(), source, receive)
        if not sends:
            rest = pickle.loads(head)
            tensors = [torch.empty(slot.shape, dtype=slot.dtype) for slot in _slots(rest)]
        self._send_tensors(channel, tensors, source, receive)
        if receive and not sends:
            self._load(_put_tensors(rest, iter(tensors)), optimizers)

    def _load(self, rest, optimizers):
        session = self._session
        states = rest["optimizers"]
        if len(states) != len(optimizers):
            say(
                f"rank {session.world.rank} has {len(optimizers)} optimizers, the others "
                f"{len(states)}: make them before the first step; their state is not taken over"
            )
            states = []
        for optimizer, state in zip(optimizers, states):
            if session.in_backward:
                # This rank's own schedulers go through this step too: rates stay its own.
                state["param_groups"] = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict(state)
        if rest["gradients"] is not None:
            parameters = [p for m in self.models for p in m.module.parameters()]
            for p, gradient in zip(parameters, rest["gradients"]):
                p.grad = None if gradient is None else gradient.to(p.device)

    # --- Files

    def write(self, path):
        torch.save(
            {
                "models": [m.module.state_dict() for m in self.models],
                "optimizers": [o.state_dict() for o in optimizers_of(self)],
                "gradients": None
                if self._session.stepped
                else [p.grad for m in self.models for p in m.module.parameters()],
            },
            path,
        )

    def read(self, path):
        rest = torch.load(path, map_location="cpu")
        for model, state in zip(self.models, rest["models"]):
            model.module.load_state_dict(state)
        self._load(rest, optimizers_of(self))
