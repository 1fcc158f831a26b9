# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def wait_for(condition, seconds=120):
    """What `condition` gives, once it gives something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.02)
    return found


class MlflowServer:
    """A real `mlflow server` with SQLite, which can be killed and started again at the same port."""

    def __init__(self, directory):
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        # No telemetry, and none of the processes that would run jobs of its user interface.
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true",
                       "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
                   "--workers", "1", "--backend-store-uri", f"sqlite:///{self.directory}/mlflow.db",
                   "--artifacts-destination", str(self.directory / "artifacts")]
        with open(self.directory / "server.log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_for(lambda: self.answers() or self.process.poll() is not None, seconds=240)
        assert self.process.poll() is None, self.log()

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def log(self):
        return (self.directory / "server.log").read_text(errors="replace")[-4000:]

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory):
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


class Training:
    """The program logged_training, which takes the steps that it is told to take."""

    PROGRAM = ROOT / "build/tests/programs/logged_training"

    def __init__(self, directory, first=1, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AF_", "MLFLOW_"))}
        environment |= {"AF_RUN_DIR": str(directory), "AF_RUN_ID": "run-7", **variables}
        self.process = subprocess.Popen([self.PROGRAM, directory, str(first)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def finish(self):
        """What it said on stderr."""
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return said

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_training(tmp_path):
    started = []

    def start(*arguments, directory=tmp_path, **variables):
        started.append(Training(directory, *arguments, **variables))
        return started[-1]

    yield start
    for training in started:
        if training.process.poll() is None:
            training.kill()
