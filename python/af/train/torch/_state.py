# SPDX-License-Identifier: Apache-2.0
"""Parameters, buffers and optimizers of a training: sending them to ranks, saving them."""

import pickle
import struct

import torch

from .._session import say
from ._channel import open_channel
from ._optimizers import optimizers_of, scalers, schedules_of


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
        if verdict.fresh and told["snapshot"] and world.rank == verdict.source:
            self.read(told["snapshot"])
        channel = self.channel()
        for model in self.models:
            model.place(channel)
        if world.size == 1:
            return
        whole = not verdict.fresh or told["snapshot"]
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
        tensors, head = [], b""
        if sends:
            head = pickle.dumps(_take_tensors(self._rest(told["stepped"]), tensors))
        size = session.broadcast_bytes(struct.pack("<q", len(head)), 8, source)
        head = session.broadcast_bytes(head, struct.unpack("<q", size)[0], source)
        self._send_tensors(channel, self._tensors(), source, receive)
        if not sends:
            rest = pickle.loads(head)
            tensors = [torch.empty(slot.shape, dtype=slot.dtype) for slot in _slots(rest)]
        self._send_tensors(channel, tensors, source, receive)
        if receive and not sends:
            self._load(_put_tensors(rest, iter(tensors)))

    def _rest(self, stepped):
        """All that is not in the models."""
        gradients = None
        if not stepped:
            # Gradients that no optimizer has used yet are part of the state.
            gradients = [p.grad for m in self.models for p in m.module.parameters()]
        return {
            "optimizers": [o.state_dict() for o in optimizers_of(self)],
            "schedules": [_plain_state(s) for s in schedules_of(self)],
            "scalers": [s.state_dict() for s in scalers()],
            "gradients": gradients,
        }

    def _load(self, rest):
        # A rank in the middle of this step goes through what follows it by itself: its schedules
        # and scalers come to where the others are, and its rates stay its own.
        in_step = self._session.in_backward
        for optimizer, state in self._pairs("optimizers", optimizers_of(self), rest):
            if in_step:
                state["param_groups"] = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict(state)
        if not in_step:
            for schedule, state in self._pairs("schedules", schedules_of(self), rest):
                if state is not None:
                    schedule.load_state_dict(state)
            for scaler, state in self._pairs("scalers", scalers(), rest):
                scaler.load_state_dict(state)
        if rest["gradients"] is not None:
            parameters = [p for m in self.models for p in m.module.parameters()]
            for p, gradient in zip(parameters, rest["gradients"]):
                p.grad = None if gradient is None else gradient.to(p.device)

    def _pairs(self, what, own, rest):
        if len(own) == len(rest[what]):
            return zip(own, rest[what])
        say(
            f"rank {self._session.world.rank} has {len(own)} {what}, the others {len(rest[what])}: "
            "make all before the first step; their state is not taken over"
        )
        return ()

    # --- Files

    def write(self, path):
        state = {"models": [m.module.state_dict() for m in self.models]}
        torch.save({**state, **self._rest(self._session.stepped)}, path)

    def read(self, path):
        # It is af's own file, and holds more than tensors.
        safe = {} if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 0) else {"weights_only": False}
        rest = torch.load(path, map_location="cpu", **safe)
        for model, state in zip(self.models, rest["models"]):
            model.module.load_state_dict(state)
        self._load(rest)


def _plain_state(schedule):
    """Its state if it can be sent; functions of the program's own cannot."""
    state = schedule.state_dict()
    try:
        pickle.dumps(state)
    except Exception:
        return None
    return state
