# SPDX-License-Identifier: Apache-2.0
"""libaf_collectives.so through ctypes: finding it, its functions, its errors.

The library is looked for in AF_LIBRARY (a path), beside the package, in the ``lib`` of the prefix
that the package is installed in, in ``build/lib`` of the repository, and last where the system's
loader looks. Calls release the interpreter's lock, so other threads go on while one waits.
"""

import ctypes
import os
import sys

ABI_VERSION = 1
_NAME = "libaf_collectives.so"

# Numbers of enum af_error.
INVALID_ARGUMENT, TIMEOUT, PEER_LOST, MISMATCH, ABORTED, STORE, SYSTEM, INTERRUPTED = range(1, 9)
_KINDS = {
    INVALID_ARGUMENT: "invalid argument",
    TIMEOUT: "timeout",
    PEER_LOST: "peer lost",
    MISMATCH: "mismatch",
    ABORTED: "aborted",
    STORE: "store",
    SYSTEM: "system",
    INTERRUPTED: "interrupted",
}

# Numbers of enum af_type by the names that torch's types have.
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "bfloat16": 7, "float32": 8, "float64": 9,
}  # fmt: skip
SUM, AVG, MIN, MAX = range(4)

FLAG_CHANGE, FLAG_SAVE, FLAG_LOST = 1, 2, 4


class CommunicatorError(RuntimeError):
    """A collective operation or the meeting of the ranks failed.

    ``kind`` is one of the numbers above, ``ranks`` the ranks that it is about.
    """

    def __init__(self, text, kind=SYSTEM, ranks=()):
        super().__init__(text)
        self.kind = kind
        self.ranks = tuple(ranks)

    @property
    def kind_name(self):
        return _KINDS.get(self.kind, str(self.kind))


class LibraryMissing(ImportError):
    """libaf_collectives.so cannot be found or loaded; the text says where it was looked for."""


def candidates():
    """Paths at which the library may be, in the order in which they are tried."""
    if os.environ.get("AF_LIBRARY"):
        return [os.environ["AF_LIBRARY"]]
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [os.path.join(here, _NAME), os.path.join(here, "lib", _NAME)]
    prefixes = [here]
    for _ in range(5):  # PREFIX/lib/python3.X/site-packages/af
        prefixes.append(os.path.dirname(prefixes[-1]))
    prefixes.append(sys.prefix)
    for prefix in prefixes[1:]:
        paths += [os.path.join(prefix, part, _NAME) for part in ("lib", "lib/af", "build/lib")]
    return paths


_P, _I, _I64, _U64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
_S, _D, _SZ = ctypes.c_char_p, ctypes.c_double, ctypes.c_size_t
_OUT = ctypes.POINTER(ctypes.c_void_p)

_FUNCTIONS = {
    "af_abi_version": (_I, []),
    "af_version": (_S, []),
    "af_last_error": (_S, []),
    "af_last_error_ranks": (_I, [ctypes.POINTER(_I), _I]),
    "af_store_session": (_I, [_S, _OUT]),
    "af_store_set": (_I, [_P, _S, _S]),
    "af_store_get": (_I, [_P, _S, _I64, _S, _SZ]),
    "af_store_release": (None, [_P]),
    "af_all_reduce": (_I, [_P, _P, _P, _SZ, _I, _I, _D, _P, _OUT]),
    "af_broadcast": (_I, [_P, _P, _P, _SZ, _I, _I, _P, _OUT]),
    "af_all_gather": (_I, [_P, _P, _P, _SZ, _I, _P, _OUT]),
    "af_barrier": (_I, [_P, _P, _OUT]),
    "af_allocate": (_I, [_P, _SZ, _OUT]),
    "af_buffer_data": (_P, [_P]),
    "af_buffer_release": (None, [_P]),
    "af_description": (_S, [_P]),
    "af_abort": (_I, [_P, _S]),
    "af_world_open": (_I, [_S, _OUT]),
    "af_world_close": (None, [_P]),
    "af_world_elastic": (_I, [_P]),
    "af_world_generation": (_U64, [_P]),
    "af_world_rank": (_I, [_P]),
    "af_world_ranks": (_I, [_P]),
    "af_world_members": (_I, [_P, ctypes.POINTER(_I), ctypes.POINTER(_I64), ctypes.POINTER(_I), _I]),
    "af_world_environment": (_S, [_P]),
    "af_world_communicator": (_I, [_P, _OUT]),
    "af_world_flags": (_I, [_P, _I]),
    "af_world_agree": (None, [_P, _I]),
    "af_world_agreed": (_I, [_P]),
    "af_world_notice": (_S, [_P]),
    "af_world_next": (_I, [_P, _I64, _I, ctypes.POINTER(_I)]),
    "af_world_step_done": (None, [_P, _I64]),
    "af_world_finished": (None, [_P]),
    "af_world_saved": (None, [_P, _S, _I64]),
    "af_world_send": (_I, [_P, _S]),
}

_library = None


def library():
    """The loaded library; raises LibraryMissing."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def _load():
    tried, loaded = [], None
    for path in candidates():
        if not os.path.exists(path):
            tried.append(path)
            continue
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise LibraryMissing(f"{path} cannot be loaded: {error}") from None
        break
    if loaded is None:
        try:
            loaded = ctypes.CDLL(_NAME)
        except OSError:
            raise LibraryMissing(
                f"{_NAME} is not in {', '.join(tried)}: build it (make) or set AF_LIBRARY to its path"
            ) from None
    loaded.af_abi_version.restype = _I
    found = loaded.af_abi_version()
    if found != ABI_VERSION:
        raise LibraryMissing(
            f"{loaded._name} has interface {found}, this af package needs {ABI_VERSION}: "
            "install both from the same release"
        )
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise LibraryMissing(
                f"{loaded._name} has no {name}: it is older than this af package"
            ) from None
        function.restype, function.argtypes = result, arguments
    return loaded


def error(code):
    """The exception for a code that a call of this thread has just returned."""
    lib = library()
    ranks = (_I * 64)()
    count = min(lib.af_last_error_ranks(ranks, 64), 64)
    text = (lib.af_last_error() or b"").decode("utf-8", "replace") or f"af error {code}"
    return CommunicatorError(text, code, ranks[:count])


def check(code):
    if code != 0:
        raise error(code)


def is_rank_process():
    """Whether this process may speak to the agent: workers of a DataLoader inherit AF_SOCKET too.

    The first process that asks is the rank; it leaves its number to those it starts.
    """
    pid = str(os.getpid())
    return os.environ.setdefault("AF_CLIENT_PID", pid) == pid
