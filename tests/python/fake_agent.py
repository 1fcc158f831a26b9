# SPDX-License-Identifier: Apache-2.0
"""A run of ranks as plain processes, with a stand-in for af-launch's agents and coordinator.

It speaks docs/session-protocol.md: keys, hello, arrive, world, lost, change, leave, save. Ranks are
known by worker numbers 0, 1, …, which are never given twice; ranks of a world go by them.
"""

import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Nursery:
    """A process that has imported torch and forks ranks: an import takes seconds, a fork does not."""

    def __init__(self):
        self._process = subprocess.Popen(
            [python(), str(pathlib.Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._exits = {}
        self._born = queue.Queue()
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._process.stdout:
            message = json.loads(line)
            if "born" in message:
                self._born.put(message["born"])
                continue
            with self._changed:
                self._exits[message["pid"]] = message["code"]
                self._changed.notify_all()

    def start(self, program, environment, directory, log):
        request = {"program": program, "env": environment, "cwd": str(directory), "log": str(log)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return Child(self, self._born.get(timeout=300))

    def wait(self, pid):
        with self._changed:
            self._changed.wait_for(lambda: pid in self._exits)
            return self._exits[pid]

    def exit_of(self, pid):
        with self._changed:
            return self._exits.get(pid)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


class Child:
    """A rank of the nursery, with what tests use of subprocess.Popen."""

    def __init__(self, nursery, pid):
        self._nursery, self.pid = nursery, pid

    def poll(self):
        return self._nursery.exit_of(self.pid)

    def wait(self):
        return self._nursery.wait(self.pid)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class Worker:
    def __init__(self, number):
        self.number = number
        self.name = f"af-test-{uuid.uuid4().hex}"
        self.process = None
        self.control = None  # the connection that said hello
        self.arrived = None  # the message
        self.rank = -1  # in the current world
        self.generation = -1
        self.finished = False
        self.told_to_leave = False
        self.gone = False
        self.client = None
        self.connections = []

    @property
    def pid(self):
        return self.process.pid


class Agent:
    """Starts `command` once for each worker. Use as a context manager: at its end all are dead.

    With a nursery the last word of the command, a Python program, is run in a fork of it.
    """

    def __init__(self, command, directory, elastic=True, environment=None, nursery=None):
        self.nursery = nursery
        self.command, self.directory, self.elastic = list(command), pathlib.Path(directory), elastic
        self.environment = environment or {}
        self.workers = {}
        self.events = []  # (worker number, message) of all that ranks said
        self.worlds = []  # (generation, [worker numbers])
        self.generation = -1
        self.members = []  # worker numbers of the current world
        self.joining = set()  # workers that are to be in the next world
        self.leaving = set()
        self.changing = False
        self.keys = {}
        self.waiting = []  # (connection, id, key)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.last_words = {}
        self.exits = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait()
        for worker in self.workers.values():
            worker.listener.close()
            for connection in worker.connections:
                connection.close()

    # --- Starting

    def start(self, count):
        """The first world."""
        with self.lock:
            numbers = [self._spawn(rank, count) for rank in range(count)]
            if not self.elastic:
                self.generation, self.members = 0, numbers
                for rank, number in enumerate(numbers):
                    self.workers[number].rank = rank
            self.joining |= set(numbers)
        return numbers

    def join(self, when="checkpoint"):
        """One more worker; the world is asked to change when it has arrived."""
        with self.lock:
            number = self._spawn(0, 1, generation=self.generation + 1)
            self.workers[number].when = when
            self.joining.add(number)
        return number

    def _spawn(self, rank, size, generation=0):
        number = len(self.workers)
        worker = self.workers[number] = Worker(number)
        listener = worker.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0" + worker.name)
        listener.listen(16)
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AF_", "SLURM_"))},
            "PYTHONPATH": str(ROOT / "python"),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "AF_SOCKET": "@" + worker.name,
            "AF_GENERATION": str(generation),
            "AF_MAX_WORKERS": "4",
            "AF_RUN_ID": "1",
            "AF_BACKEND": "local",
            "AF_COLLECTIVE_TIMEOUT": "60",
            "AF_WORKER": str(number + int(self.environment.get("AF_WORKER_SHIFT", "0"))),
            **({"AF_ELASTIC": "1"} if self.elastic else {}),
            **self.environment,
        }
        path = self.directory / f"worker-{number}.log"
        if self.nursery is not None:
            worker.process = self.nursery.start(
                self.command[-1], environment, self.directory, path
            )
        else:
            with open(path, "wb") as log:
                worker.process = subprocess.Popen(
                    self.command, env=environment, cwd=self.directory, stdout=log, stderr=log
                )
        threading.Thread(target=self._accept, args=(worker,), daemon=True).start()
        threading.Thread(target=self._watch, args=(worker,), daemon=True).start()
        return number

    def log(self, number):
        return (self.directory / f"worker-{number}.log").read_text(errors="replace")

    # --- Connections

    def _accept(self, worker):
        while True:
            try:
                connection, _ = worker.listener.accept()
            except OSError:
                return
            worker.connections.append(connection)
            threading.Thread(target=self._read, args=(worker, connection), daemon=True).start()

    def _read(self, worker, connection):
        buffer = b""
        while True:
            try:
                data = connection.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            buffer += data
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                self._hear(worker, connection, json.loads(line))

    @staticmethod
    def _say(connection, message):
        try:
            connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    def _hear(self, worker, connection, message):
        with self.lock:
            op = message.get("op")
            if op == "set":
                self.keys[message["key"]] = message["value"]
                self._say(connection, {"id": message["id"], "ok": True})
                for entry in [w for w in self.waiting if w[2] == message["key"]]:
                    self.waiting.remove(entry)
                    self._say(entry[0], {"id": entry[1], "ok": True, "value": message["value"]})
            elif op == "get":
                self._get(connection, message)
            else:
                self.events.append((worker.number, message))
                if op == "hello":
                    worker.control, worker.client = connection, message["client"]
                elif op == "arrive":
                    worker.arrived = message
                    if worker.number in self.members and not self.changing:
                        self._lose(f"worker {worker.number} gave up the world")
                    self._see()
                elif op == "finished":
                    worker.finished = True
                self.changed.notify_all()

    def _get(self, connection, message):
        if message["key"] in self.keys:
            value = self.keys[message["key"]]
            self._say(connection, {"id": message["id"], "ok": True, "value": value})
            return
        entry = (connection, message["id"], message["key"])
        self.waiting.append(entry)

        def give_up():
            with self.lock:
                if entry in self.waiting:
                    self.waiting.remove(entry)
                    self._say(connection, {"id": entry[1], "ok": False, "error": "timeout"})

        timer = threading.Timer(message.get("timeout", 300), give_up)
        timer.daemon = True
        timer.start()

    def _watch(self, worker):
        code = worker.process.wait()
        with self.lock:
            worker.gone = True
            self.exits[worker.number] = code
            expected = worker.finished or worker.told_to_leave or any(
                number == worker.number and m.get("op") == "saved" for number, m in self.events
            )
            self.joining.discard(worker.number)
            self.leaving.discard(worker.number)
            if worker.number in self.members and not expected and code != 0:
                self._lose(f"worker {worker.number} ended with {code}")
            self._see()
            self.changed.notify_all()

    # --- Worlds

    def _lose(self, why):
        for entry in self.waiting:
            self._say(entry[0], {"id": entry[1], "ok": False, "error": "the world has ended"})
        self.waiting = []
        self.changing = True
        for number in self.members:
            worker = self.workers[number]
            if not worker.gone and worker.control is not None:
                self._say(
                    worker.control, {"event": "lost", "generation": self.generation, "why": why}
                )

    def _see(self):
        """Forms the next world if all that go on have arrived; asks for a change if one waits."""
        if not self.elastic:
            return
        going_on = [n for n in self.members if not self.workers[n].gone]
        going_on = [n for n in going_on if not self.workers[n].finished]
        # New ones ask for a change, and come in with any.
        new = [n for n in sorted(self.joining) if self.workers[n].arrived is not None]
        if self.generation < 0 and len(new) < len(self.joining):
            return
        if new and going_on and not self.changing:
            self.changing = True
            self._change(self.workers[new[0]].when)
            return
        if not self.changing and self.generation >= 0:
            return
        if any(self.workers[n].arrived is None for n in going_on):
            return
        if not going_on and self.generation >= 0:
            for number in new:
                self.workers[number].told_to_leave = True
                self._say(self.workers[number].control, {"event": "leave", "why": "all is done"})
            return
        for number in list(self.leaving):
            worker = self.workers[number]
            worker.told_to_leave = True
            self._say(worker.control, {"event": "leave", "why": "its GPU is taken"})
            going_on.remove(number)
        self.leaving.clear()
        self._form(sorted(going_on + new))

    def _form(self, numbers):
        self.generation += 1
        self.changing = False
        members = []
        for number in numbers:
            worker = self.workers[number]
            same = worker.arrived["generation"] >= 0
            members.append(
                {
                    "was": worker.rank if same else -1,
                    "step": worker.arrived["step"],
                    "in_step": worker.arrived["in_step"],
                }
            )
        for rank, number in enumerate(numbers):
            worker = self.workers[number]
            worker.rank, worker.arrived, worker.generation = rank, None, self.generation
            self._say(
                worker.control,
                {
                    "event": "world",
                    "generation": self.generation,
                    "rank": rank,
                    "world_size": len(numbers),
                    "members": members,
                    "environment": {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(len(numbers)),
                        "LOCAL_RANK": "0",
                        "AF_GENERATION": str(self.generation),
                        "AF_BACKEND": "local",
                    },
                },
            )
        self.members = list(numbers)
        self.joining -= set(numbers)
        self.worlds.append((self.generation, list(numbers)))
        self.changed.notify_all()

    def _change(self, when):
        for number in self.members:
            worker = self.workers[number]
            if worker.control is not None:
                self._say(worker.control, {"event": "change", "when": when})

    # --- What tests do

    def take(self, number):
        """With notice: the worker leaves behind a step."""
        with self.lock:
            self.leaving.add(number)
            self.changing = True
            self._change("step")

    def kill(self, number):
        os.kill(self.workers[number].pid, signal.SIGKILL)

    def save(self):
        with self.lock:
            for number in self.members:
                self._say(
                    self.workers[number].control,
                    {"event": "save", "reason": "time limit", "deadline": None},
                )

    def heard(self, op, number=None):
        with self.lock:
            return [m for n, m in self.events if m.get("op") == op and number in (None, n)]

    def wait(self, condition, what, seconds=60):
        """Until condition() is true; it is looked at whenever something has been heard."""
        end = time.monotonic() + seconds
        with self.changed:
            while not condition():
                if time.monotonic() > end:
                    logs = "\n".join(f"--- {n}\n{self.log(n)}" for n in self.workers)
                    raise AssertionError(
                        f"{what} did not come in {seconds} s; worlds {self.worlds[-9:]}, exits "
                        f"{self.exits}, last {self.events[-5:]}\n{logs}"
                    )
                self.changed.wait(0.2)

    def wait_end(self, seconds=90):
        self.wait(lambda: all(w.gone for w in self.workers.values()), "the end of all ranks", seconds)
        return dict(self.exits)

    def wait_world(self, size, seconds=60):
        self.wait(
            lambda: any(len(n) == size for _, n in self.worlds[-1:]), f"a world of {size}", seconds
        )


def python():
    """The interpreter of the tests; it has torch."""
    return sys.executable
