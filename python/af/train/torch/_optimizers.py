# SPDX-License-Identifier: Apache-2.0
"""Finds the optimizers of a program: their state travels with the model, and a rank that was given
the state behind a step must not take that step itself.

Every torch.optim.Optimizer made after this module was imported is noticed; its `step` becomes one
that looks at the session first. Learning-rate schedulers wrap that one in turn.
"""

import functools
import types
import weakref

import torch

from .._session import session

_made = []  # weak references, in the order of making


def install():
    original = torch.optim.Optimizer.__init__
    if getattr(original, "_af", False):
        return

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _made.append(weakref.ref(self))
        _wrap_step(self)

    init._af = True
    torch.optim.Optimizer.__init__ = init


def _wrap_step(optimizer):
    inner = type(optimizer).step

    @functools.wraps(inner)
    def step(self, *args, **kwargs):
        current = session()
        if current.models is None or not belongs(self, current.models):
            return inner(self, *args, **kwargs)
        if current.skip_optimizers or current.catching_up:
            return None
        result = inner(self, *args, **kwargs)
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
    alive = [reference() for reference in _made]
    _made[:] = [weakref.ref(o) for o in alive if o is not None]
    return [o for o in alive if o is not None and belongs(o, models)]
