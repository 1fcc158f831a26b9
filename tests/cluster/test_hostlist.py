# SPDX-License-Identifier: Apache-2.0
"""Case B03: node lists are expanded as `scontrol show hostnames` does it.

scontrol needs a slurm.conf to start but no cluster for this."""
import os
import subprocess

import pytest

from sandbox import REPO

LISTS = [
    "n1", "a,b", "b,a", "n1,n1", "n[1,2]", "n-x[01-03]", "a,b[001,003],c", "n[8-11]", "n[08-11,3]",
    "n[098-101]", "n[1-02]", "n[0-0]", "n[00-02]", "n1-3", "a,,b", "n[1-2],", "n[9-10],m[1]",
    "r[1-2]n[01-02]", "r[1-2]n[01-02],z", "n[1,2]x[3-4]", "n[01-100]", "n[1-3,7-9]", "n[5]",
]
REFUSED = ["n[3-1]", "n[]", "n[a-b]", "n[1,,2]", "n[[1]]"]


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory):
    conf = tmp_path_factory.mktemp("conf") / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\n")

    def expand(hosts):
        return subprocess.run(["scontrol", "show", "hostnames", hosts], capture_output=True, text=True,
                              timeout=20, env={**os.environ, "SLURM_CONF": str(conf)})
    return expand


def ours(hosts):
    return subprocess.run([REPO / "build/tests/programs/expand_hostlist", hosts], capture_output=True,
                          text=True, timeout=20)


@pytest.mark.parametrize("hosts", LISTS)
def test_equals_scontrol(scontrol, hosts):
    theirs = scontrol(hosts)
    assert theirs.returncode == 0, theirs.stderr
    assert ours(hosts).stdout == theirs.stdout


@pytest.mark.parametrize("hosts", REFUSED)
def test_refuses_what_scontrol_refuses(scontrol, hosts):
    theirs, answer = scontrol(hosts), ours(hosts)
    assert "nvalid" in theirs.stderr, "scontrol takes it: then we should"
    assert answer.returncode != 0 and hosts in answer.stderr and answer.stdout == ""


@pytest.mark.parametrize("hosts", ["n[1-2]-ib", "n[1,2]x[3-4]y"])
def test_suffix_behind_a_bracket(scontrol, hosts):
    """Slurm 22.05 refuses it, later versions do not; either way ours is the plain reading."""
    theirs, answer = scontrol(hosts), ours(hosts)
    if "nvalid" in theirs.stderr:
        expected = {"n[1-2]-ib": "n1-ib\nn2-ib\n", "n[1,2]x[3-4]y": "n1x3y\nn1x4y\nn2x3y\nn2x4y\n"}[hosts]
        assert answer.stdout == expected
    else:
        assert answer.stdout == theirs.stdout
