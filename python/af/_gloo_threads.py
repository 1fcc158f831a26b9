# SPDX-License-Identifier: Apache-2.0
"""Lets Gloo's threads put away what they hold before a Python ends."""
import os
import time

_LOOK_SECONDS = 0.002
_LOOKS = 3  # at which all have to be found asleep


def _states():
    """Of this process's Gloo threads: R runs or waits for a processor, S sleeps."""
    states = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat", encoding="ascii", errors="replace") as file:
                _, _, named = file.read().partition("(")
        except OSError:
            continue  # it has ended meanwhile
        name, _, rest = named.rpartition(")")
        if name == "pt_gloo_runloop":
            states.append(rest.split()[0])
    return states


def settle(at_most_seconds=1.0):
    """Waits until the threads of Gloo's process groups have nothing left to do.

    Such a thread lets go of the tensors of a collective some time after the program has seen it end, and
    needs the interpreter for that. Where the interpreter is ending by then, CPython before 3.14 ends the
    thread, C++ does not let it, and the process is aborted ("terminate called without an active
    exception"): pytorch/pytorch#190489. A thread that waits for the interpreter gets it while this
    sleeps. Does nothing where PyTorch does not name these threads (before 2.6; there it is rare).
    """
    end = time.monotonic() + at_most_seconds
    asleep = 0
    try:
        while asleep < _LOOKS and time.monotonic() < end:
            states = _states()
            if not states:
                return
            asleep = asleep + 1 if set(states) == {"S"} else 0
            time.sleep(_LOOK_SECONDS)
    except OSError:
        pass  # no /proc
