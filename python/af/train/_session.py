# SPDX-License-Identifier: Apache-2.0
"""The training of this rank: its world, how far it is, and what happens when the world changes.

A *step* is one backward pass of a prepared model whose reduction has completed. Collective
operations of a world come in this order on every rank:

  meeting    where each rank stands; the furthest tells how the rows are dealt (`enter`)
  state      model and optimizers from the furthest to those that lack it (`enter(state=True)`)
  steps and reports, in the order of the program
  end        a barrier behind the program

Any of them may fail because the world is lost. Then this rank waits for the next world, meets the
others there, and repeats what it was in, unless a rank had completed it already.

Used by the thread of the training alone.
"""

import atexit
import ctypes
import json
import os
import sys
import threading
import time
import weakref

from .. import _native, _world
from .._native import CommunicatorError
from . import _agreement

_SETTLED = (_native.INVALID_ARGUMENT, _native.MISMATCH)  # the program's fault: no world helps


def say(text):
    print(f"af: {text}", file=sys.stderr, flush=True)


# Without a step in between; the ranks of a world that is lost while it is formed are no failure of
# this one, but they are few.
_MOST_FAILURES = 20


class Session:
    def __init__(self):
        self._opened = None
        self._on_world = None
        self.steps = 0  # completed
        self.reports = 0  # completed
        self.reports_known = 0  # completed by any rank
        self.has_state = False
        self.stepped = False  # an optimizer has used the gradients of the last step
        self.skip_optimizers = False  # the state of this step came from another rank
        self.in_backward = False  # in the reduction at its end
        self.catching_up = False  # what others have done before this rank joined is passed over
        self.weight = None  # (rows of this rank, rows of all ranks) of the step in progress
        self.agreed = 0  # flags that all ranks know of and that are to be acted on
        self.models = None  # ModelState (torch), once a model is prepared
        self.loaders = {}  # number -> weak reference to a loader (has .dealing, .version)
        self.loader_states = {}  # number -> state for a loader that is not made yet
        self.run = None  # Run: storage, reports
        self.snapshot = None  # file to begin with, agreed at the first meeting
        self._begun = False  # there has been a first meeting
        self.verdict = None
        self.told = {}  # what the source told at the meeting
        self._share_of = {}  # generation -> this rank's number in that world
        self._failures = 0  # worlds in a row that could not be formed
        self._met = None  # generation in which this rank has met the others
        self._synced = None

    # --- The world

    @property
    def world(self):
        if self._opened is None:
            try:
                self._opened = _world.current()
            except CommunicatorError as error:
                if error.kind == _native.ABORTED:  # not needed after all
                    leave()
                raise
            if self._on_world is not None:
                self._on_world(self._opened)
        return self._opened

    def on_world(self, function):
        """Calls function(world) as soon as there is one."""
        self._on_world = function
        if self._opened is not None:
            function(self._opened)

    def enter(self, state=False, error=None, change=False):
        """Makes this rank a full member of the current world: nothing if it is.

        `state`: with model and optimizers too. `error`: the world has failed; `change`: it is to be
        given up. Returns when all that has worked in some world; exits if this rank is in none.
        """
        if error is None and not change:
            generation = self.world.generation
            if self._synced == generation or (not state and self._met == generation):
                return
        while True:
            try:
                if error is not None or change:
                    self._next(error)
                    error, change = None, False
                if self._met != self.world.generation:
                    self._meet()
                if state and self._synced != self.world.generation:
                    self._receive_state()
                return
            except CommunicatorError as failure:
                if not self.recoverable(failure):
                    raise
                self._failures += 1
                if self._failures > _MOST_FAILURES:
                    raise RuntimeError(
                        f"{_MOST_FAILURES} worlds in a row could not be formed, the last: {failure}"
                    ) from failure
                error = failure

    def recoverable(self, error):
        return self.world.elastic and error.kind not in _SETTLED

    def _next(self, error):
        world = self.world
        completed = self.steps if self.has_state else -1
        try:
            out = world.next(completed, self.in_step())
        except CommunicatorError as failure:
            # The agent has gone or says no: the first reason is the one to tell.
            raise RuntimeError(f"{failure}" + (f" (after: {error})" if error else "")) from error
        self.agreed &= ~_native.FLAG_CHANGE  # done; the job's end outlives a world
        if self.models is not None:
            self.models.world_changed()
        if out:
            leave()

    def in_step(self):
        return any(l.dealing.in_progress() and l.dealing.taken for l in self._living_loaders())

    # --- Meeting

    def _meet(self):
        world = self.world
        generation = world.generation
        self._share_of[generation] = world.rank
        text = json.dumps(self._tell()).encode()
        mine = _agreement.Standing(
            self.has_state, self.steps, self.in_step(), self.reports, len(text)
        )
        standings = [_agreement.Standing(*row) for row in self._gather([int(x) for x in mine])]
        verdict = _agreement.conclude(standings)
        told = self.broadcast_bytes(text, standings[verdict.source].text_bytes, verdict.source)
        told = json.loads(told.decode())
        shares = self._gather_shares(told) if verdict.begun else {}

        # All is known: from here on nothing fails, so the ranks that come here do the same.
        current = verdict.fresh or (self.has_state and self.steps == verdict.furthest)
        joins = not self.has_state and not verdict.fresh and self._synced is None
        for number, state in told["loaders"].items():
            loader = self._loader(int(number))
            if loader is None:
                self.loader_states[int(number)] = state
                continue
            taken = current and loader.dealing.in_progress() and loader.dealing.taken
            loader.adopt(state, joins)
            if loader.dealing.in_progress():
                held = shares[int(number)]
                loader.dealing.hand_over(held, held[world.rank], taken)
                if taken:
                    self.weight = loader.weight(held[world.rank])
        if verdict.fresh:
            self.steps, self.reports = told["steps"], told["reports"]
            self.snapshot, self._begun = told["snapshot"], True
        self.reports_known = verdict.reports
        self.verdict, self.told = verdict, told
        self._met = generation

    def _tell(self):
        """What the other ranks need from this one if it is the source."""
        told = {
            "loaders": {n: l.dealing.as_json(self.world.size) for n, l in self._numbered_loaders()},
            "steps": self.steps,
            "reports": self.reports,
            "stepped": self.stepped,
            "snapshot": self.snapshot,  # file of the state to begin with
        }
        # Asked once: afterwards rows are dealt as it says.
        if not self.has_state and not self._begun and self.world.rank == 0 and self.run is not None:
            snapshot = self.run.fitting_snapshot(self)
            if snapshot:
                told.update(snapshot)
        return told

    def _gather_shares(self, told):
        """For each loader in a step: what each rank of this world holds of it."""
        deals = {int(n): s["deal"] for n, s in told["loaders"].items() if s["deal"]}
        mine = [self._share_of.get(deal[3], -1) for deal in deals.values()]
        rows = self._gather(mine) if deals else []
        return {
            number: [None if row[i] < 0 else row[i] for row in rows]
            for i, number in enumerate(deals)
        }

    def _receive_state(self):
        verdict, rank = self.verdict, self.world.rank
        lacks = not verdict.fresh and rank in verdict.receivers
        before = self.steps
        if self.models is not None:
            if lacks:
                self.has_state = False  # until all has come
            self.models.sync(self, verdict, self.told)
        if lacks:
            # The optimizers' step of this one is in the state that came, if the source had done it.
            overtaken = self.in_backward and before < verdict.furthest
            self.skip_optimizers = overtaken and self.told["stepped"]
            self.steps = verdict.furthest
            self.stepped = self.told["stepped"]
        self.has_state = True
        self._synced = self.world.generation

    # --- Small operations on all ranks; in a world of one they cost nothing

    def _gather(self, numbers):
        size, n = self.world.size, len(numbers)
        if size == 1:
            return [list(numbers)]
        mine, all_ = (ctypes.c_int64 * n)(*numbers), (ctypes.c_int64 * (n * size))()
        self.world.communicator().all_gather(
            ctypes.addressof(mine), ctypes.addressof(all_), n, "int64"
        )
        return [list(all_[r * n : (r + 1) * n]) for r in range(size)]

    def broadcast_bytes(self, data, size, root):
        """`size` bytes of rank `root` on all ranks."""
        if self.world.size == 1:
            return data
        buffer = ctypes.create_string_buffer(size)
        if self.world.rank == root:
            buffer.raw = data
        at = ctypes.addressof(buffer)
        self.world.communicator().broadcast(at, at, size, "uint8", root)
        return buffer.raw

    def sum(self, numbers):
        n = len(numbers)
        if self.world.size == 1:
            return list(numbers)
        mine, total = (ctypes.c_double * n)(*numbers), (ctypes.c_double * n)()
        self.world.communicator().all_reduce(
            ctypes.addressof(mine), ctypes.addressof(total), n, "float64"
        )
        return list(total)

    # --- Steps

    def step_completed(self, change, save):
        """The reduction of a step has completed; the flags are sums over all ranks."""
        self.steps += 1
        self._failures = 0
        self.stepped = False
        self.skip_optimizers = False
        for loader in self._living_loaders():
            if loader.dealing.taken:
                loader.dealing.complete()
        self.note_flags(change, save)
        self.world.step_done(self.steps)

    def note_flags(self, change, save):
        flags = (_native.FLAG_CHANGE if change else 0) | (_native.FLAG_SAVE if save else 0)
        if flags:
            self.agreed |= flags
            self.world.agree(flags)

    def between_steps(self):
        """Does what the ranks have agreed on. Called where no step is in progress."""
        if not self.agreed:
            return
        flags, self.agreed = self.agreed, 0
        if flags & _native.FLAG_SAVE:
            self._save_and_exit()
        self.enter(change=True)

    def _save_and_exit(self):
        world = self.world
        if world.rank == 0:
            path = self.run.save_snapshot(self) if self.run is not None else ""
            world.saved(path or "", self.steps)
        try:
            if world.size > 1:
                world.communicator().barrier()  # nobody goes while rank 0 still writes
        except CommunicatorError:
            pass
        leave()

    # --- Loaders

    def add_loader(self, loader):
        number = len(self.loaders)
        self.loaders[number] = weakref.ref(loader)
        if number in self.loader_states:
            loader.adopt(self.loader_states.pop(number), joins=not self.has_state)
        return number

    def restore_loaders(self, states):
        """From a checkpoint: states by number as text."""
        for number, state in states.items():
            loader = self._loader(int(number))
            if loader is not None:
                loader.adopt(state, joins=False)
            else:
                self.loader_states[int(number)] = state

    def _loader(self, number):
        reference = self.loaders.get(number)
        return reference() if reference is not None else None

    def _numbered_loaders(self):
        living = ((n, r()) for n, r in self.loaders.items())
        return [(n, loader) for n, loader in living if loader is not None]

    def _living_loaders(self):
        return [loader for _, loader in self._numbered_loaders()]

    # --- The end

    def finish(self):
        """Behind the training function, on every rank. Returns on rank 0 only."""
        error = None
        while True:
            try:
                self.enter(state=self.models is not None, error=error)
                if self.world.size > 1:
                    self.world.communicator().barrier()
                break
            except CommunicatorError as failure:
                if not self.recoverable(failure):
                    raise
                error = failure
        self.world.finished()
        if self.world.rank != 0:
            leave()


def leave():
    """Ends this process with 0, also from within a backward pass: flushed, exit handlers run."""
    # Handlers may wait for threads or processes that wait for this one.
    guard = threading.Timer(3.0, os._exit, (0,))
    guard.daemon = True
    guard.start()
    try:
        atexit._run_exitfuncs()
    except BaseException:
        pass
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(0)


_session = None


def session():
    global _session
    if _session is None:
        _session = Session()
    return _session


def now():
    return time.time()
