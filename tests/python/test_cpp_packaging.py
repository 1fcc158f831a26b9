# SPDX-License-Identifier: Apache-2.0
"""A C++ program outside of this tree, on what `make install` has put there: built with CMake and with pkg-config, started
alone, by af-launch and by mpirun."""
import os
import pathlib
import shutil
import subprocess

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = REPO / "examples/cpp/allreduce/main.cc"

HAS_TRAIN = (REPO / "build/lib/libaf_train.so").exists()

pytestmark = pytest.mark.skipif(
    not all((REPO / "build" / path).exists() for path in ("bin/af-launch", "lib/slurm/spank_af.so")),
    reason="nothing is built: make")

CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(outside CXX)
find_package(af {version} REQUIRED)
add_executable(collectives {example})
target_link_libraries(collectives PRIVATE af::collectives)
if(TARGET af::train)
  add_executable(training training.cc)
  target_link_libraries(training PRIVATE af::train)
endif()
"""

# Of libtorch only what compiles quickly.
TRAINING = """
#include <c10/core/ScalarType.h>
#include <cstdio>
#include "af/train/dealer.h"
#include "af/train/metrics.h"
int main() { std::printf("%s\\n", c10::toString(c10::kFloat)); }
"""


def run(*command, check=True, **environment):
    # Under a job of Slurm or an mpirun the example would take itself for one of its ranks.
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("AF_", "SLURM_", "OMPI_", "PMI", "PKG_CONFIG", "CMAKE_"))
            and name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LD_LIBRARY_PATH")}
    done = subprocess.run([str(word) for word in command], cwd="/", env={**kept, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=300)
    assert not check or done.returncode == 0, f"{command}:\n{done.stdout}"
    return done


@pytest.fixture(scope="module", name="prefix")
def installed(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("prefix")
    run(REPO / "scripts/install", "", prefix)
    return prefix


@pytest.fixture(scope="module", name="programs")
def built_with_cmake(prefix, tmp_path_factory):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    outside = tmp_path_factory.mktemp("outside")
    version = (REPO / "VERSION").read_text().strip()
    (outside / "CMakeLists.txt").write_text(CMAKE.format(version=version, example=EXAMPLE))
    (outside / "training.cc").write_text(TRAINING)
    run("cmake", "-S", outside, "-B", outside / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", outside / "build")
    return outside / "build"


def pkg_config(prefix, *words):
    return run("pkg-config", *words, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig")).stdout.split()


def needed(program):
    return run("ldd", program).stdout


def test_with_cmake_alone_it_is_a_world_of_one(programs):
    printed = run(programs / "collectives").stdout
    assert "local, a world of one" in printed and "pi is about 3.14" in printed


def test_with_pkg_config_alone_it_is_a_world_of_one(prefix, tmp_path):
    run("g++", "-std=c++20", "-o", tmp_path / "collectives", EXAMPLE, *pkg_config(prefix, "--cflags", "--libs", "af"))
    assert "local, a world of one" in run(tmp_path / "collectives").stdout


def test_two_workers_of_af_launch(prefix, programs):
    printed = run(prefix / "bin/af-launch", "--workers", "2", programs / "collectives").stdout
    assert "local, 2 ranks on 1 node: shared memory" in printed, printed


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun")
def test_two_ranks_of_mpirun(programs):
    printed = run("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", programs / "collectives").stdout
    assert "mpi, 2 ranks" in printed, printed


def test_collectives_need_no_libtorch_and_no_mpi(programs):
    libraries = needed(programs / "collectives")
    assert "libaf_collectives.so" in libraries and "not found" not in libraries
    assert "torch" not in libraries and "libmpi" not in libraries


@pytest.mark.skipif(not HAS_TRAIN, reason="libaf_train.so is not built: make")
def test_train_with_cmake_and_with_pkg_config(prefix, programs, tmp_path):
    assert run(programs / "training").stdout == "Float\n"
    (tmp_path / "training.cc").write_text(TRAINING)
    run("g++", "-std=c++20", "-Wl,--no-as-needed", "-o", tmp_path / "training", tmp_path / "training.cc",
        *pkg_config(prefix, "--cflags", "--libs", "af-train"))
    assert run(tmp_path / "training").stdout == "Float\n"
    for program in (programs / "training", tmp_path / "training"):
        assert "not found" not in needed(program)


@pytest.mark.parametrize("asked, fits", [("", True), ("0", True), ("0.1", True), ("0.0", False), ("0.99", False), ("1", False)])
def test_versions_that_cmake_takes(prefix, tmp_path, asked, fits):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    (tmp_path / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.16)\nproject(x NONE)\n"
                                             f"find_package(af {asked} REQUIRED)\n")
    done = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", check=False)
    assert (done.returncode == 0) == fits, done.stdout
