# SPDX-License-Identifier: Apache-2.0
"""The Python client as people get it: with pip from the repository, and with make install."""
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **environment):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("AF_", "PIP_", "PYTHON", "SLURM_"))}
    return subprocess.run(command, cwd="/", env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=300)


def can_build():
    if importlib.util.find_spec("pip") is None or importlib.util.find_spec("setuptools") is None:
        return False
    # Until setuptools 70 its wheels were made by the package `wheel`.
    return int(importlib.metadata.version("setuptools").split(".")[0]) >= 70 or importlib.util.find_spec("wheel") is not None


def modules(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*.py"))


def test_the_version_is_the_repositorys():
    done = run(sys.executable, "-c", "import af; print(af.__version__)", PYTHONPATH=str(REPO / "python"))
    assert done.stdout.strip() == (REPO / "VERSION").read_text().strip()


def test_pip_installs_it_from_the_repository_without_a_network(tmp_path):
    if not can_build():
        pytest.skip(f"{sys.executable} lacks pip, setuptools or wheel")
    # A copy: setuptools leaves its work beside the sources.
    shutil.copytree(REPO / "python", tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__", "build"))
    done = run(sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-compile", "--quiet",
               "--target", tmp_path / "target", tmp_path / "python")
    assert done.returncode == 0, done.stdout
    assert modules(tmp_path / "target/af") == modules(REPO / "python/af")
    found = list((tmp_path / "target").glob("*.dist-info/METADATA"))
    version = (REPO / "VERSION").read_text().strip()
    assert len(found) == 1 and f"\nVersion: {version}\n" in found[0].read_text()
    done = run(sys.executable, "-c", "import af.train; print(af.__file__)", PYTHONPATH=str(tmp_path / "target"))
    assert done.stdout.strip() == str(tmp_path / "target/af/__init__.py")


@pytest.mark.skipif(not (REPO / "build/bin/af-launch").exists() or not (REPO / "build/lib/slurm/spank_af.so").exists(),
                    reason="nothing is built: make")
def test_make_install_puts_it_beside_its_library(tmp_path):
    stale = tmp_path / "python/af/gone.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    done = run(REPO / "scripts/install", "", tmp_path)
    assert done.returncode == 0, done.stdout
    assert modules(tmp_path / "python") == sorted(["sitecustomize.py", *(f"af/{name}" for name in modules(REPO / "python/af"))])
    done = run(sys.executable, "-c", "from af import _native; print(next(p for p in _native.candidates()"
               " if __import__('os').path.exists(p)))", PYTHONPATH=str(tmp_path / "python"))
    assert done.stdout.strip() == str(tmp_path / "lib/libaf_collectives.so"), done.stdout
