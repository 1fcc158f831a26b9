# SPDX-License-Identifier: Apache-2.0
"""The world of this rank: who takes part, operations between them, what the agent asks for.

Under af-launch, torchrun or mpirun it is the native library's (af/world.h). A process alone gets a
world of one in plain Python, which needs no library.

World and Communicator are used by one thread at a time.
"""

import ctypes
import json
import math
import os
import threading

from . import __version__, _native
from ._native import CommunicatorError


def plain(value):
    """`value` in types that JSON has: numbers of numpy and torch become Python's, NaN a text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    try:
        return plain(value.item())  # numpy and torch
    except Exception:
        return str(value)


class Memory:
    """Bytes that the communicator reduces in place without a copy. Freed when nothing refers to it."""

    def __init__(self, handle, size):
        lib = _native.library()
        self._handle, self._release = handle, lib.af_buffer_release
        self.address = lib.af_buffer_data(handle)
        self.size = size

    def __del__(self):
        if self._handle:
            self._release(self._handle)
            self._handle = None


class Communicator:
    """Blocking operations on addresses of host memory; counts are in elements.

    Every failure is a CommunicatorError. After one that is not INVALID_ARGUMENT the communicator is
    of no use any more.
    """

    def __init__(self, handle):
        self._handle, self._lib = handle, _native.library()

    def all_reduce(self, source, target, count, type_name, op=_native.SUM, pre_scale=1.0):
        code = self._lib.af_all_reduce(
            self._handle, source, target, count, _native.TYPES[type_name], op, pre_scale, None, None
        )
        if code:
            raise _native.error(code)

    def broadcast(self, source, target, count, type_name, root):
        _native.check(
            self._lib.af_broadcast(
                self._handle, source, target, count, _native.TYPES[type_name], root, None, None
            )
        )

    def all_gather(self, source, target, count, type_name):
        """`count` elements of each rank; `target` has room for all of them."""
        _native.check(
            self._lib.af_all_gather(
                self._handle, source, target, count, _native.TYPES[type_name], None, None
            )
        )

    def barrier(self):
        _native.check(self._lib.af_barrier(self._handle, None, None))

    def allocate(self, size):
        """Collective: all ranks, the same size, in the same order."""
        handle = ctypes.c_void_p()
        _native.check(self._lib.af_allocate(self._handle, size, ctypes.byref(handle)))
        return Memory(handle, size)


class World:
    """af_world. `next` replaces the communicator; everything else is cheap."""

    def __init__(self, client=f"python {__version__}"):
        self._lib = _native.library()
        handle = ctypes.c_void_p()
        # INTERRUPTED: a signal came. Python's handlers have run by the time the call returns here.
        while True:
            code = self._lib.af_world_open(client.encode(), ctypes.byref(handle))
            if code != _native.INTERRUPTED:
                break
        _native.check(code)
        self._handle = handle
        self._read()

    def _read(self):
        lib, handle = self._lib, self._handle
        self.elastic = bool(lib.af_world_elastic(handle))
        self.generation = lib.af_world_generation(handle)
        self.rank, self.size = lib.af_world_rank(handle), lib.af_world_ranks(handle)
        text = lib.af_world_environment(handle) or b"{}"
        self.environment = json.loads(text.decode())
        self._communicator = None

    def communicator(self):
        if self._communicator is None:
            handle = ctypes.c_void_p()
            _native.check(self._lib.af_world_communicator(self._handle, ctypes.byref(handle)))
            self._communicator = Communicator(handle)
        return self._communicator

    def members(self):
        """By rank: (rank in its previous world or -1, completed steps or -1, in a step)."""
        n = self.size
        was, step, in_step = (ctypes.c_int * n)(), (ctypes.c_int64 * n)(), (ctypes.c_int * n)()
        self._lib.af_world_members(self._handle, was, step, in_step, n)
        return [(was[r], step[r], bool(in_step[r])) for r in range(n)]

    def flags(self, at_checkpoint=False):
        return self._lib.af_world_flags(self._handle, 1 if at_checkpoint else 0)

    def agree(self, flags):
        self._lib.af_world_agree(self._handle, flags)

    def agreed(self):
        return self._lib.af_world_agreed(self._handle)

    def notice(self):
        text = self._lib.af_world_notice(self._handle)
        return json.loads(text.decode()) if text else None

    def next(self, completed, in_step):
        """Waits for the next world. True: this rank is in none and has to exit with 0."""
        self._communicator = None
        leave = ctypes.c_int(0)
        while True:
            code = self._lib.af_world_next(
                self._handle, completed, 1 if in_step else 0, ctypes.byref(leave)
            )
            if code != _native.INTERRUPTED:
                break
        _native.check(code)
        if leave.value:
            return True
        self._read()
        return False

    def step_done(self, step):
        self._lib.af_world_step_done(self._handle, step)

    def finished(self):
        self._lib.af_world_finished(self._handle)

    def saved(self, path, step):
        self._lib.af_world_saved(self._handle, os.fsencode(path), step)

    def send(self, message):
        """One-way: `message` is a dict for the agent. What JSON cannot say is sent as text."""
        self._lib.af_world_send(self._handle, json.dumps(plain(message)).encode())


class Alone:
    """A world of one that never changes, with the methods of World."""

    rank, size, generation, elastic = 0, 1, 0, False

    def __init__(self):
        self.environment = {}

    def communicator(self):
        return None  # nobody to talk to; callers look at `size` first

    def members(self):
        return [(-1, -1, False)]

    def flags(self, at_checkpoint=False):
        return 0

    def agree(self, flags):
        pass

    def agreed(self):
        return 0

    def notice(self):
        return None

    def next(self, completed, in_step):
        raise CommunicatorError("this world does not change", _native.STORE)

    def step_done(self, step):
        pass

    def finished(self):
        pass

    def saved(self, path, step):
        pass

    def send(self, message):
        pass


_lock = threading.Lock()
_opening = None  # the thread that opens it
_result = []  # [world] or [exception]


def needs_library(environment=os.environ):
    """Whether somebody else is there to talk to."""
    if environment.get("AF_SOCKET"):
        return True
    return any(
        environment.get(name, "1") not in ("", "1")
        for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")
    )


def _open():
    try:
        _result.append(World() if needs_library() else Alone())
    except BaseException as error:  # raised again in the thread that asks
        _result.append(error)


def open_early():
    """Says hello to the agent while the program goes on importing.

    Only in a run's first world, whose other ranks are started after it: elsewhere the others would
    wait in their first operation for what this program does before its own.
    """
    global _opening
    first = os.environ.get("AF_GENERATION", "0") == "0"
    if not first or not os.environ.get("AF_SOCKET") or not _native.is_rank_process():
        return
    with _lock:
        if _opening is None and not _result:
            _opening = threading.Thread(target=_open, name="af-open", daemon=True)
            _opening.start()


def current():
    """The world of this process, opened at the first call; blocks until there is one."""
    with _lock:
        if _opening is not None and not _result:
            _opening.join()
        if not _result:
            if needs_library() and not _native.is_rank_process():
                raise RuntimeError(
                    f"af.train was started in process {os.getpid()}, but process "
                    f"{os.environ['AF_CLIENT_PID']} is the rank: call fit() there"
                )
            _open()
    if isinstance(_result[0], BaseException):
        raise _result[0]
    return _result[0]
