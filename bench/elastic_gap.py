#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Times the gap that a lost GPU tears into a training: from the loss to the first step of the world
that goes on, for af and for torchrun, in rounds of one of each, on this machine.

A node is an agent with one rank; three nodes train. What happens to the third:

    rank     its rank gets SIGKILL; the agent lives
    node     agent and rank get SIGKILL: the node has crashed, and its connections are reset
    silence  agent and rank get SIGSTOP: power or network have gone, and no connection says so

torchrun is given fast settings (monitor_interval 0.1 s, last_call_timeout 1 s instead of 30) and a
collective timeout of TIMEOUT seconds, without which it would not act on silence for half an hour.
Prints results as JSON lines; ratio: torchrun's time over af's. Usage: elastic_gap.py REPEATS [rank|node|silence…]
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("AF_TEST_PYTHON") or "/usr/bin/python3"
LAUNCH = ROOT / "build/bin/af-launch"
DIGITS = ROOT / "build/examples/digits"
NODES = 3
TIMEOUT = 10  # seconds, of the plain program's collectives
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
LONGEST = 150  # seconds, until all train or train again

PLAIN = [PYTHON, str(ROOT / "bench/elastic_steps.py")]


def clean_environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AF_", "SLURM", "TORCHELASTIC_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "EPOCHS": "1000000",
            "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT / "python"), "PYTHONUNBUFFERED": "1",
            # Otherwise nodes that join a later round of torchrun 2.15 wait for an address that nobody sets.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def descendants(pid):
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += children.get(one, [])
    return found


def command_line(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class Trial:
    """Three nodes of one kind in a directory of their own."""

    name = None
    restarted = None  # seconds from the loss until the last process of the next world was started

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="af-bench-"))
        self.steps = self.folder / "steps"
        self.steps.mkdir()
        self.nodes = []

    def start_node(self, command):
        log = open(self.folder / f"node-{len(self.nodes)}.log", "w")
        self.nodes.append(subprocess.Popen(command, cwd=self.folder, env=clean_environment(), stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=subprocess.STDOUT, start_new_session=True))
        log.close()

    def wait_for(self, what, look, seconds=LONGEST):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found is not None:
                return found
            if self.nodes[0].poll() is not None:
                seconds = 0
                break
            time.sleep(0.02)
        logs = "".join(f"--- {path.name}\n{path.read_text()[-700:]}" for path in sorted(self.folder.glob("node-*.log")))
        raise RuntimeError(f"{self.name}: no {what} after {seconds} s\n{logs}")

    def victim(self):
        """The third node's processes, its rank last."""
        pids = descendants(self.nodes[-1].pid)
        rank = [pid for pid in pids if self.program in command_line(pid) and "af-launch" not in command_line(pid)
                and "torch.distributed.run" not in command_line(pid)]
        return [pid for pid in pids if pid not in rank] + rank

    def gap(self, how):
        """Seconds from the loss to the first step of the next world."""
        try:
            self.start()
            before = self.wait_for("step of the whole world", self.whole_world)
            time.sleep(0.5)
            pids = self.victim()
            lost = time.time()
            for pid in pids[-1:] if how == "rank" else pids:
                os.kill(pid, signal.SIGSTOP if how == "silence" else signal.SIGKILL)
            return self.wait_for("step after the loss", lambda: self.next_world(before, lost)) - lost
        finally:
            self.end()

    def end(self):
        pids = [pid for node in self.nodes for pid in descendants(node.pid)]
        # Also those whose agent was killed under them.
        pids += [int(path.name) for path in self.steps.iterdir() if str(self.steps) in command_line(int(path.name))]
        for pid in dict.fromkeys(pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for node in self.nodes:
            node.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Stepped(Trial):
    """Looks at what the plain program wrote."""

    program = "elastic_steps.py"

    def lines(self):
        for path in self.steps.iterdir():
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) == 5:
                    yield float(fields[0]), fields[1], int(fields[2]), int(fields[3]), float(fields[4])

    def whole_world(self):
        seen = {}
        for _, world, size, rank, _ in self.lines():
            if size == NODES:
                seen.setdefault(world, set()).add(rank)
        return next((world for world, ranks in seen.items() if len(ranks) == NODES), None)

    def next_world(self, before, lost):
        new = [line for line in self.lines() if line[0] > lost and line[1] != before]
        if not new:
            return None
        first = min(new)
        same = {rank: started for _, world, _, rank, started in new if world == first[1]}
        if len(same) < first[2]:  # of all its ranks, to know when the last one was started
            return None
        self.restarted = max(same.values()) - lost
        return first[0]


class Torchrun(Stepped):
    name = "torchrun"

    def start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for node in range(NODES):
            self.start_node([PYTHON, "-m", "torch.distributed.run", f"--nnodes=1:{NODES}", "--nproc_per_node=1",
                             "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_id=bench",
                             "--rdzv_conf=last_call_timeout=1", "--max_restarts=100", "--monitor_interval=0.1",
                             PLAIN[1], str(self.steps), str(TIMEOUT)])
            if node == 0:  # it keeps the store
                time.sleep(1)


class Af(Trial):
    def start_with(self, program):
        run = self.folder / "run"
        self.start_node([LAUNCH, f"--max-workers={NODES}", f"--run-dir={run}", "--grow-interval=0", *program])
        self.wait_for("coordinator", lambda: (run / "coordinator").exists() or None)
        for _ in range(NODES - 1):
            self.start_node([LAUNCH, f"--join={run}"])

    def events(self):
        try:
            lines = (self.folder / "run/events.jsonl").read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]


class Cold(Af, Stepped):
    name = "af, program restarted"

    def start(self):
        self.start_with([*PLAIN, str(self.steps), str(TIMEOUT)])


class Warm(Af):
    """Looks at the journal: the client says when the first step in a world is done."""

    def whole_world(self):
        events = self.events()
        whole = [e["generation"] for e in events if e["event"] == "world_formed" and e["size"] == NODES]
        return next((g for g in whole if any(e["event"] == "first_step" and e["generation"] == g for e in events)), None)

    def next_world(self, before, lost):
        return min((e["t"] for e in self.events() if e["event"] == "first_step" and e["generation"] > before), default=None)


class WarmPython(Warm):
    name = "af, Python client stays"
    program = "elastic.py"

    def start(self):
        self.start_with([PYTHON, str(ROOT / "examples/python/elastic.py")])


class WarmCpp(Warm):
    name = "af, C++ client stays"
    program = "digits"

    def start(self):
        self.start_with([str(DIGITS), "--data", str(ROOT / "examples/data/digits.h5"), "--epochs", "1000000"])


WORDS = {"rank": "rank killed", "node": "node crashed", "silence": "node silent"}


def torchrun_works():
    probe = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1", "--no_python", "true"]
    return subprocess.run(probe, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          stdin=subprocess.DEVNULL).returncode == 0


def measure(how, kinds):
    """Rounds of one trial of each kind, so that all see the same machine. The first is the peer."""
    gaps, restarted = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}
    failed = dict.fromkeys(kinds, 0)
    while min(map(len, gaps.values())) < REPEATS:
        for kind in kinds:
            if len(gaps[kind]) == REPEATS:
                continue
            try:
                trial = kind()
                gaps[kind].append(trial.gap(how))
                if trial.restarted is not None:
                    restarted[kind].append(trial.restarted)
                print(f"bench_elastic: {WORDS[how]}: {kind.name} {gaps[kind][-1]:.2f} s, processes started after"
                      f" {trial.restarted} s", file=sys.stderr)
            except RuntimeError as error:
                print(f"bench_elastic: {error}", file=sys.stderr)
                failed[kind] += 1
                if failed[kind] > REPEATS:
                    print(f"bench_elastic: {WORDS[how]}, {kind.name}: given up", file=sys.stderr)
                    return False
    peer = kinds[0]
    named = peer.name if peer is not Torchrun else f"torchrun {VERSION}" + (f", timeout {TIMEOUT} s" if how == "silence" else "")
    for kind in kinds[1:]:
        report(f"{WORDS[how]} to next step, {kind.name}", gaps[kind], named, gaps[peer])
        if restarted[kind] and restarted[peer]:
            report(f"{WORDS[how]} to last process started, af", restarted[kind], named, restarted[peer])
    return True


def report(name, values, peer, peers):
    print(json.dumps({
        "name": name, "value": round(statistics.median(values), 3), "unit": "s", "peer": peer,
        "peer_value": round(statistics.median(peers), 3),
        "ratio": round(statistics.median(peers) / statistics.median(values), 2),
        "spread": f"{min(values):.3f} to {max(values):.3f} s, peer {min(peers):.2f} to {max(peers):.2f} s, {len(values)} rounds"}),
        flush=True)


VERSION = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], stdout=subprocess.PIPE, text=True,
                         check=True).stdout.strip()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or the trial under way would go on for ever
    kinds = [Torchrun, Cold, WarmPython] + ([WarmCpp] if DIGITS.exists() else [])
    if not torchrun_works():
        print(f"bench_elastic: torchrun of {PYTHON} (PyTorch {VERSION}) does not start: no comparison with it; AF_TEST_PYTHON"
              " names another Python", file=sys.stderr)
        kinds.remove(Torchrun)
    # A list, not a generator: all are measured.
    return 0 if all([measure(how, kinds) for how in sys.argv[2:] or WORDS]) else 1


if __name__ == "__main__":
    sys.exit(main())
