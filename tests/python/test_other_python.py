# SPDX-License-Identifier: Apache-2.0
"""AF_TEST_PYTHON=/path/to/python: the other files of this folder with that Python, and so with its
PyTorch, too. It needs pytest."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
OTHER = os.environ.get("AF_TEST_PYTHON")


@pytest.mark.skipif(not OTHER, reason="AF_TEST_PYTHON names no other Python, such as one with a PyTorch wheel")
@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("test_*.py") if path.name != "test_other_python.py"))
def test_with_another_python(file):
    environment = {name: value for name, value in os.environ.items() if name not in ("AF_TEST_PYTHON", "PYTHONPATH")}
    done = subprocess.run([OTHER, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "--tb=short", HERE / file],
                          env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, f"{OTHER}: exit code {done.returncode}\n{done.stdout[-6000:]}"
