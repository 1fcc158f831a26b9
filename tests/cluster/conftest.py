# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the cluster tests: real sandboxes, always taken down.

cluster       the default cluster, one per pytest process, with an empty queue and a working
              directory of the test's own; give it to tests that need no other shape
make_cluster  make_cluster(shape=…, proctrack=…, plugin=…, site=…, slurm_conf=[…]): one of its own
"""
import contextlib
import itertools
import os
import re

import pytest

from sandbox import REPO, Sandbox, wait_for  # noqa: F401  (tests import wait_for from here too)

_numbers = itertools.count(1)


def new_name():
    """Unique among pytest processes on this machine; the pid lets others see a stale one."""
    return f"t{os.getpid()}-{next(_numbers)}"


def remove_stale():
    """Sandboxes of pytest processes that were killed before they could clean up."""
    folder = REPO / "build" / "sandbox"
    for path in folder.glob("t*-*") if folder.is_dir() else []:
        match = re.fullmatch(r"t(\d+)-\d+", path.name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            Sandbox(path.name).remove()


@contextlib.contextmanager
def running_sandbox(**options):
    """A sandbox of its own, removed at the end; for fixtures of a wider scope than make_cluster."""
    sandbox = Sandbox(new_name(), **options)
    try:
        sandbox.up()
        yield sandbox
    finally:
        sandbox.remove()


@contextlib.contextmanager
def for_one_test(sandbox, name):
    """The sandbox with a working directory of the test's own, and afterwards an empty queue."""
    # Numbered: the same test may run twice with other parameters.
    short = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:60]
    sandbox.cwd = f"/work/users/ada/{next(_numbers)}-{short}"
    sandbox.run("mkdir", "-p", sandbox.cwd, cwd="/work/users/ada")
    try:
        yield sandbox
    finally:
        sandbox.cancel_all()
        sandbox.cwd = None


@pytest.fixture(scope="session")
def session_cluster():
    remove_stale()
    with running_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def cluster(session_cluster, request):
    with for_one_test(session_cluster, request.node.name) as sandbox:
        yield sandbox


@pytest.fixture
def make_cluster():
    made = []

    def make(**options):
        sandbox = Sandbox(new_name(), **options)
        made.append(sandbox)
        sandbox.up()
        return sandbox

    yield make
    for sandbox in made:
        sandbox.remove()
