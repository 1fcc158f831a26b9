# SPDX-License-Identifier: Apache-2.0
"""Finds what a program trains with beside its models: optimizers, schedules of learning rates,
gradient scalers.

Their state travels with the model, and a rank that was given the state behind a step must not take
that step itself. All that are made after this module was imported are noticed. The `step` of an
optimizer becomes one that looks at the session first; schedules wrap that one in turn.
"""

import functools
import types
import weakref

import torch

from .._session import session

_made = {"optimizers": [], "schedules": [], "scalers": []}  # weak references, in order of making


def install():
    scheduler = torch.optim.lr_scheduler
    base = getattr(scheduler, "LRScheduler", None) or scheduler._LRScheduler
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None) or torch.cuda.amp.GradScaler
    _notice(torch.optim.Optimizer, "optimizers", _wrap_step)
    _notice(base, "schedules")
    if not issubclass(scheduler.ReduceLROnPlateau, base):  # before torch 2.2
        _notice(scheduler.ReduceLROnPlateau, "schedules")
    _notice(scaler, "scalers")


def _notice(kind, where, then=None):
    original = kind.__init__
    if getattr(original, "_af", False):
        return

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        # Before it is made, and once: the inner schedules of a sequence come behind it everywhere,
        # and a class may call the __init__ of another one that is noticed.
        if not any(reference() is self for reference in _made[where]):
            _made[where].append(weakref.ref(self))
            if then is not None:
                then(self)
        original(self, *args, **kwargs)

    init._af = True
    kind.__init__ = init


def _living(where):
    alive = [reference() for reference in _made[where]]
    _made[where][:] = [weakref.ref(thing) for thing in alive if thing is not None]
    return [thing for thing in alive if thing is not None]


def _wrap_step(optimizer):
    @functools.wraps(type(optimizer).step)
    def step(self, *args, **kwargs):
        current = session()
        if current.models is None or not belongs(self, current.models):
            return type(self).step(self, *args, **kwargs)
        if current.skip_optimizers or current.catching_up:
            return None
        result = type(self).step(self, *args, **kwargs)
        current.stepped = True
        return result

    # A method with __self__ and __func__, as the schedulers of torch expect it.
    optimizer.step = types.MethodType(step, optimizer)


def belongs(optimizer, models):
    """Whether it has a parameter of a prepared model."""
    known = models.parameter_ids()
    return any(id(p) in known for group in optimizer.param_groups for p in group["params"])


def optimizers_of(models):
    """Those that are alive and belong to prepared models, in the order of making."""
    return [o for o in _living("optimizers") if belongs(o, models)]


def schedules_of(models):
    """Schedules of those optimizers."""
    found = [s for s in _living("schedules") if getattr(s, "optimizer", None) is not None]
    return [s for s in found if belongs(s.optimizer, models)]


def scalers():
    return [s for s in _living("scalers") if s.is_enabled()]
