# SPDX-License-Identifier: Apache-2.0
"""af-launch outside Slurm: a world on this machine. Needs no cluster."""
import json
import os
import pathlib
import signal
import socket
import subprocess

import pytest

from launch_helpers import LEAVE_DAEMON, PYTHON, alive, parent
from sandbox import REPO, wait_for

LAUNCH = str(REPO / "build" / "bin" / "af-launch")
CLEAN = {key: value for key, value in os.environ.items()
         if not key.startswith(("SLURM_", "AF_", "PMI"))}


def popen(folder, *command):
    return subprocess.Popen([LAUNCH, *command], cwd=folder, env=CLEAN, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def of_run(folder):
    """Pids of ranks and what they have started: their current directory is the test's."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") == str(folder) and alive(pid):
                found.append(int(pid))
        except OSError:
            pass
    return found


def test_a_satellite_that_is_taken_back_before_it_has_joined_leaves_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "coordinator").write_text("127.0.0.1:%d" % silent.getsockname()[1])
        (tmp_path / "secret").write_text("0" * 32)
        (tmp_path / "secret").chmod(0o600)
        process = popen(tmp_path, "--join", str(tmp_path))
        silent.settimeout(20)
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=8)  # by itself it waits for an answer for 10 s
    assert (process.returncode, out) == (0, "")
    assert err == "af-launch: told to leave before it had joined\n"


@pytest.mark.parametrize("number, code, word", [(signal.SIGINT, 130, "interrupted"),
                                                (signal.SIGTERM, 143, None)])
def test_a_signal_reaches_the_ranks_and_gives_the_code(tmp_path, number, code, word):
    (tmp_path / "wait.py").write_text("""\
import sys, time
try:
    print("ready", flush=True)
    while True:  # of a signal that comes just before a sleep Python says so behind it
        time.sleep(0.05)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
""")
    process = popen(tmp_path, "--workers", "2", PYTHON, "wait.py")
    lines = [process.stdout.readline() for _ in range(2)]
    assert sorted(lines) == ["[0] ready\n", "[1] ready\n"]
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code, err
    assert out.count("interrupted") == (2 if word else 0)
    assert of_run(tmp_path) == []
    state = json.loads(next(tmp_path.glob("af-runs/*/state.json")).read_text())
    assert (state["state"], state["code"]) == ("failed", code)


@pytest.mark.parametrize("victim", ["keeper", "agent"])
def test_kill_9_leaves_nothing(tmp_path, victim):
    (tmp_path / "leave.py").write_text(LEAVE_DAEMON)
    process = popen(tmp_path, "--workers", "2", PYTHON, "leave.py", "wait")
    ready = 0
    while ready < 2:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        ready += "ready" in line
    agent = next(pid for pid in of_run(tmp_path) if parent(pid) == process.pid)
    os.kill(process.pid if victim == "keeper" else agent, signal.SIGKILL)
    process.wait(timeout=10)
    assert process.returncode in (-9, 137)
    wait_for(lambda: not of_run(tmp_path), 10, lambda: f"left: {of_run(tmp_path)}")
    process.communicate(timeout=10)


def test_an_unwritable_directory_is_one_line(tmp_path):
    process = popen(tmp_path, "--run-dir=/proc/x", "true")
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (122, "")
    assert len(err.splitlines()) == 1 and "/proc/x" in err
    assert pathlib.Path(tmp_path / "af-runs").exists() is False


def test_a_program_that_cannot_be_executed_ends_the_world(tmp_path):
    (tmp_path / "program").write_text("#!/nonexistent\n")
    (tmp_path / "program").chmod(0o755)
    process = popen(tmp_path, "--workers", "3", "./program")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 122
    assert "cannot start the ranks" in err and "program" in err


def test_a_flood_from_what_a_rank_left_behind_ends_with_the_world(tmp_path):
    flood = "yes & until grep -q '^wchar: [1-9]' /proc/$!/io; do :; done; exit 3"
    process = popen(tmp_path, "sh", "-c", flood)
    while process.stdout.read(1 << 20):
        pass
    assert process.wait(timeout=30) == 3
    assert of_run(tmp_path) == []


def test_the_journal_names_each_ranks_worker(tmp_path):
    process = popen(tmp_path, "--workers=3", "--run-dir=run", "sh", "-c", "exit 0")
    process.communicate(timeout=60)
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    ends = {event["rank"]: event["worker"] for event in events if event["event"] == "rank_exit"}
    assert ends == {0: 0, 1: 1, 2: 2}
