#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A training without a model: one small all-reduce a step, in a world that changes (af/af.h).

    elastic_loop.py STEPS [SECONDS-PER-STEP] [--checkpoint-every K] [--save-seconds S]

A client of the session protocol through libaf_collectives and ctypes; it starts in a tenth of a
second. Writes lines "WHAT gen=G rank=R/N step=S t=SECONDS", WHAT being world, step, checkpoint, leaving,
saved or done. All ranks end with 0 when a file `stop` is in the current directory; a rank that
finds `fail-RANK` ends with 1.
"""
import argparse
import ctypes
import os
import pathlib
import signal
import sys
import time

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "build/lib/libaf_collectives.so"
CHANGE, SAVE, LOST = 1, 2, 4  # AF_FLAG_…
FLOAT, SUM = 8, 0


def load():
    library = ctypes.CDLL(str(LIBRARY))
    library.af_last_error.restype = ctypes.c_char_p
    library.af_world_generation.restype = ctypes.c_uint64
    return library


class Lost(Exception):
    """The world is gone, or could not be formed."""


class Loop:
    def __init__(self, options):
        self.options = options
        self.library = load()
        self.world = ctypes.c_void_p()
        self.step = 0
        code = self.library.af_world_open(b"elastic_loop", ctypes.byref(self.world))
        if code == 5:  # AF_ERROR_ABORTED: not needed after all
            sys.exit(0)
        self.check(code)
        self.enter()

    def check(self, code):
        if code:
            raise Lost(f"{code}: {self.library.af_last_error().decode()}")

    def show(self, what):
        generation = self.library.af_world_generation(self.world)
        print(f"{what} gen={generation} rank={self.rank}/{self.size} step={self.step} "
              f"t={time.time():.3f}", flush=True)

    def enter(self):
        """What the members of the new world have agreed on: the furthest step."""
        self.rank = self.library.af_world_rank(self.world)
        self.size = self.library.af_world_ranks(self.world)
        was, in_step = (ctypes.c_int * self.size)(), (ctypes.c_int * self.size)()
        steps = (ctypes.c_int64 * self.size)()
        self.library.af_world_members(self.world, was, steps, in_step, self.size)
        self.step = max(self.step, *steps, 0)
        self.show("world")

    def next_world(self):
        leave = ctypes.c_int()
        self.check(self.library.af_world_next(self.world, ctypes.c_int64(self.step), 0,
                                              ctypes.byref(leave)))
        if leave.value:
            self.show("leaving")
            sys.exit(0)
        self.enter()

    def take_step(self, at_checkpoint):
        """One step of all ranks; True if one of them wants to stop."""
        communicator = ctypes.c_void_p()
        self.check(self.library.af_world_communicator(self.world, ctypes.byref(communicator)))
        flags = self.library.af_world_flags(self.world, int(at_checkpoint))
        stop = os.path.exists("stop")
        values = (ctypes.c_float * 4)(1, bool(flags & CHANGE), bool(flags & SAVE), stop)
        self.check(self.library.af_all_reduce(communicator, values, values, ctypes.c_size_t(4), FLOAT,
                                              SUM, ctypes.c_double(1), None, None))
        _, change, save, stop = values
        self.library.af_world_agree(self.world, (CHANGE if change else 0) | (SAVE if save else 0))
        self.step += 1
        self.library.af_world_step_done(self.world, ctypes.c_int64(self.step))
        self.show("step")
        return bool(stop)

    def checkpoint(self):
        if self.rank == 0:
            self.library.af_world_send(
                self.world, b'{"op":"checkpoint","path":"none","step":%d,"seconds":0}' % self.step)
        self.show("checkpoint")

    def run(self):
        stop = False
        while not stop and self.step < self.options.steps:
            if os.path.exists(f"fail-{self.rank}"):
                sys.exit(1)
            at_checkpoint = (self.step + 1) % self.options.checkpoint_every == 0
            try:
                stop = self.take_step(at_checkpoint)
            except Lost as error:
                print("lost", error, flush=True)
                self.next_world()
                continue
            if at_checkpoint:
                self.checkpoint()
            agreed = self.library.af_world_agreed(self.world)
            if agreed & SAVE:
                time.sleep(self.options.save_seconds)
                self.library.af_world_saved(self.world, b"none", ctypes.c_int64(self.step))
                self.show("saved")
                sys.exit(0)
            if agreed & (CHANGE | LOST) and not stop:
                time.sleep(self.options.save_seconds if agreed & CHANGE else 0)
                self.next_world()
            time.sleep(self.options.seconds)
        self.library.af_world_finished(self.world)
        self.show("done")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("seconds", type=float, nargs="?", default=0.05)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--save-seconds", type=float, default=0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the session says what to do
    Loop(parser.parse_args()).run()


main()
