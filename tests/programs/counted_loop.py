#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A training without a model that writes down which samples it takes: for scripts/soak.

    counted_loop.py [SECONDS-PER-STEP]

One small all-reduce a step in a world that changes (af/af.h). Each step takes BATCH samples of
SAMPLES, dealt over the ranks. The state is the number of completed steps; rank 0 writes it to
AF_CHECKPOINT_DIR/step every 10 steps. All ranks end with 0 when a file `stop` is in the current
directory.

It prints numbered lines, "line N of WHO", and writes AF_RUN_DIR/samples/WHO.jsonl
(docs/soak.md):
    {"enter": GENERATION, "rank", "size", "step", "attempt"}   it begins world GENERATION behind `step`
    {"takes": STEP, "generation", "epoch", "samples"}          before the reduction of a step
    {"done": STEP, "generation"}                               behind it
    {"end": LINES}                                             it ends by itself, having printed so many
"""
import ctypes
import json
import os
import pathlib
import signal
import socket
import sys
import time

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "build/lib/libaf_collectives.so"
CHANGE, SAVE, LOST = 1, 2, 4  # AF_FLAG_…
FLOAT, SUM = 8, 0
SAMPLES, BATCH, CHECKPOINT_EVERY = 240, 24, 10
STEPS_PER_EPOCH = SAMPLES // BATCH


class Lost(Exception):
    """The world is gone, or could not be formed."""


class Loop:
    def __init__(self, seconds):
        self.seconds = seconds
        self.who = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
        directory = pathlib.Path(os.environ["AF_RUN_DIR"], "samples")
        directory.mkdir(exist_ok=True)
        self.file = os.open(directory / f"{self.who}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.lines = 0
        self.saved = pathlib.Path(os.environ["AF_CHECKPOINT_DIR"], "step")
        self.step = int(self.saved.read_text()) if self.saved.exists() else 0
        self.library = ctypes.CDLL(str(LIBRARY))
        self.library.af_last_error.restype = ctypes.c_char_p
        self.library.af_world_generation.restype = ctypes.c_uint64
        self.world = ctypes.c_void_p()
        code = self.library.af_world_open(b"counted_loop", ctypes.byref(self.world))
        if code == 5:  # AF_ERROR_ABORTED: not needed after all
            self.leave()
        self.check(code)
        self.enter()

    def check(self, code):
        if code:
            raise Lost(f"{code}: {self.library.af_last_error().decode()}")

    def note(self, **what):
        os.write(self.file, (json.dumps(what) + "\n").encode())

    def say(self, text):
        self.lines += 1
        print(f"line {self.lines} of {self.who}: {text}", flush=True)

    def leave(self):
        self.say("leaves")
        self.note(end=self.lines)
        sys.exit(0)

    def enter(self):
        self.rank = self.library.af_world_rank(self.world)
        self.size = self.library.af_world_ranks(self.world)
        self.generation = self.library.af_world_generation(self.world)
        was, in_step = (ctypes.c_int * self.size)(), (ctypes.c_int * self.size)()
        steps = (ctypes.c_int64 * self.size)()
        self.library.af_world_members(self.world, was, steps, in_step, self.size)
        # All begin anew: from the checkpoint. Otherwise the furthest gives its state to the others.
        if max(steps) >= 0:
            self.step = max(steps)
        self.note(enter=self.generation, rank=self.rank, size=self.size, step=self.step,
                  attempt=int(os.environ["AF_ATTEMPT"]))
        self.say(f"world {self.generation}, rank {self.rank} of {self.size}, step {self.step}")

    def next_world(self):
        leave = ctypes.c_int()
        self.check(self.library.af_world_next(self.world, ctypes.c_int64(self.step), 0, ctypes.byref(leave)))
        if leave.value:
            self.leave()
        self.enter()

    def take_step(self):
        """True if one of the ranks wants to stop."""
        communicator = ctypes.c_void_p()
        self.check(self.library.af_world_communicator(self.world, ctypes.byref(communicator)))
        step = self.step + 1
        epoch, place = divmod(self.step, STEPS_PER_EPOCH)
        # Another order in each epoch; 7 has no divisor in common with SAMPLES.
        batch = [(i * 7 + epoch) % SAMPLES for i in range(place * BATCH, (place + 1) * BATCH)]
        self.note(takes=step, generation=self.generation, epoch=epoch, samples=batch[self.rank::self.size])
        flags = self.library.af_world_flags(self.world, int(step % CHECKPOINT_EVERY == 0))
        values = (ctypes.c_float * 4)(1, bool(flags & CHANGE), bool(flags & SAVE), os.path.exists("stop"))
        self.check(self.library.af_all_reduce(communicator, values, values, ctypes.c_size_t(4), FLOAT, SUM,
                                              ctypes.c_double(1), None, None))
        _, change, save, stop = values
        self.library.af_world_agree(self.world, (CHANGE if change else 0) | (SAVE if save else 0))
        self.step = step
        self.note(done=step, generation=self.generation)
        self.library.af_world_step_done(self.world, ctypes.c_int64(step))
        self.say(f"step {step}")
        return bool(stop)

    def save(self):
        if self.rank != 0:
            return
        temporary = self.saved.with_suffix(".tmp")
        temporary.write_text(str(self.step))
        os.replace(temporary, self.saved)
        self.library.af_world_send(
            self.world, b'{"op":"checkpoint","path":"step","step":%d,"seconds":0}' % self.step)

    def run(self):
        stop = False
        while not stop:
            try:
                stop = self.take_step()
            except Lost as error:
                self.say(f"lost: {error}")
                self.next_world()
                continue
            if self.step % CHECKPOINT_EVERY == 0:
                self.save()
            agreed = self.library.af_world_agreed(self.world)
            if agreed & SAVE:
                self.save()
                self.library.af_world_saved(self.world, b"step", ctypes.c_int64(self.step))
                self.leave()
            if agreed & (CHANGE | LOST) and not stop:
                self.next_world()
            time.sleep(self.seconds)
        self.library.af_world_finished(self.world)
        self.leave()


signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the session says what to do
Loop(float(sys.argv[1]) if len(sys.argv) > 1 else 0.05).run()
