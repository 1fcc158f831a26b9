# SPDX-License-Identifier: Apache-2.0
"""What the tests of af-launch share: the command, programs for ranks, and looking at a run."""
import json
import os
import pathlib
import re

LAUNCH = "/opt/af/build/bin/af-launch"
PYTHON = "/usr/bin/python3"

# Writes what the rank sees to rank-R.json in the current directory, then goes on.
SHOW = """\
import json, os, sys
facts = {"argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid()}
name = f"rank-{os.environ['RANK']}.json"
with open(name + ".tmp", "w") as file:
    json.dump(facts, file)
os.rename(name + ".tmp", name)
"""

# Counts the signals it gets, in its main process and in a child that a DataLoader would have.
COUNT_SIGNALS = """\
import os, signal, sys, time
rank = os.environ["RANK"]
who = f"main-{rank}"
def note(number, frame):
    os.write(1, f"{who} got {signal.Signals(number).name}\\n".encode())
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
child = os.fork()
if child == 0:
    who = f"child-{rank}"
    os.write(1, f"{who} ready\\n".encode())
    while True:
        time.sleep(0.05)
os.write(1, f"{who} ready\\n".encode())
while not os.path.exists("stop"):
    time.sleep(0.05)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""

# Leaves a daemon behind that has forked twice, has its own session and holds our output.
LEAVE_DAEMON = """\
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    print("daemon", os.getpid(), flush=True)
    while True:
        time.sleep(1)
os.wait()
time.sleep(0.3)
print("rank", os.environ["RANK"], "ready", flush=True)
how = sys.argv[1]
if how == "end":
    sys.exit(0)
if how == "fail":
    sys.exit(9 if os.environ["RANK"] == "1" else 0)
while True:
    time.sleep(1)
"""


def facts(cluster, rank):
    return json.loads(cluster.read(f"rank-{rank}.json"))


def events(cluster, run_directory):
    """The journal of a run as a list of dicts."""
    return [json.loads(line) for line in cluster.read(f"{run_directory}/events.jsonl").splitlines()]


def processes_of_run(cluster, run_id):
    """This machine's pids of processes in the sandbox that carry the run's mark."""
    mark = f"AF_RUN_ID={run_id}".encode()
    found = []
    for pid in cluster.processes():
        try:
            if mark in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            pass  # ended meanwhile
    return found


def launchers(cluster, pattern="af-launch"):
    """{pid: command line} of processes in the sandbox whose command line has `pattern`."""
    found = {}
    for pid in cluster.processes():
        try:
            line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if re.search(pattern, line):
            found[pid] = line
    return found


def parent(pid):
    text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(text.rsplit(")", 1)[1].split()[1])


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def has_cgroup_freezer():
    if os.geteuid() != 0:
        return False
    return any("freezer" in line.split(" - ")[1] and os.access(line.split()[4], os.W_OK)
               for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
               if " - cgroup " in line)
