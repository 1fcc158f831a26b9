# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the cluster tests: real sandboxes, always taken down.

cluster       the default cluster, one per pytest process, with an empty queue and a working
              directory of the test's own; give it to tests that need no other shape
make_cluster  make_cluster(shape=…, proctrack=…, plugin=…, site=…, slurm_conf=[…]): one of its own
"""
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


@pytest.fixture(scope="session")
def session_cluster():
    remove_stale()
    sandbox = Sandbox(new_name())
    try:
        sandbox.up()
        yield sandbox
    finally:
        sandbox.remove()


@pytest.fixture
def cluster(session_cluster, request):
    sandbox = session_cluster
    # Numbered: the same test may run twice with other parameters.
    short = re.sub(r"[^A-Za-z0-9_.-]+", "_", request.node.name)[:60]
    sandbox.cwd = f"/work/users/ada/{next(_numbers)}-{short}"
    sandbox.run("mkdir", "-p", sandbox.cwd, cwd="/work/users/ada")
    try:
        yield sandbox
    finally:
        sandbox.cancel_all()
        sandbox.cwd = None


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
