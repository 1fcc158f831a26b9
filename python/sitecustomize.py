# SPDX-License-Identifier: Apache-2.0
"""For each Python under af-launch, which has this folder in PYTHONPATH; Python imports it by itself.

A program that has trained over Gloo ends as it should: see af/_gloo_threads.py. Then the sitecustomize
that this one hides has its turn, if there is one.
"""
import atexit
import os
import sys


def _settle():
    if "torch.distributed" in sys.modules:
        try:
            from af._gloo_threads import settle
        except ImportError:  # the program has changed sys.path
            return
        settle()


def _hand_on():
    here = os.path.dirname(os.path.abspath(__file__))
    place = next((i for i, folder in enumerate(sys.path) if os.path.abspath(folder) == here), None)
    if place is None:
        return
    hidden_from = sys.path.pop(place)
    own = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = own
    finally:
        sys.path.insert(place, hidden_from)


atexit.register(_settle)  # before all others, so that it is called behind them
_hand_on()
