# SPDX-License-Identifier: Apache-2.0
"""af-perf, and the mpi backend, under each way to start ranks: forked, mpirun, srun, af-launch."""
import os
import re
import shutil
import subprocess
import tempfile
import time

import pytest

from sandbox import REPO, unless_open_mpi_crashed

PERF = REPO / "build/bin/af-perf"
CASES = REPO / "build/tests/programs/collective_cases"
IN_CLUSTER = "/opt/af/build/bin/af-perf"
# What starts ranks, or names a world, must not come from the shell that runs the tests.
OUTSIDE = re.compile(r"^(AF_|SLURM_|OMPI_|PMIX_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_)")
ROW = re.compile(r"^ +\d+ +\d+ +\w+ +\w+ +-?\d+ ")

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")


def run(*command, env=None, timeout=120):
    clean = {k: v for k, v in os.environ.items() if not OUTSIDE.match(k)}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=timeout, stdin=subprocess.DEVNULL, env={**clean, **(env or {})})


def mpirun(ranks, *command, env=None, timeout=120):
    words = ["mpirun", "-n", ranks, "--bind-to", "none", "--oversubscribe"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    # More ranks than cores wait for each other's time slices otherwise.
    return run(*words, "--mca", "mpi_yield_when_idle", "1", *command, env=env, timeout=timeout)


def rows(output):
    return [line.split() for line in output.splitlines() if ROW.match(line)]


def check_rows(done, count):
    """Ended well, with so many rows, all of them checked and without a wrong element."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = rows(done.stdout)
    assert len(found) == count, done.stdout
    for row in found:
        assert len(row) == 13, row
        assert row[8] == row[12] == "0", row
    assert "# Out of bounds values : 0 OK" in done.stdout


# --- every operation, type and reduction, against a plain loop ----------------------------------

# 4 operations that have sizes; the reductions differ only where something is reduced.
SIZES = ["-b", "0", "-e", "200K", "-f", "9.7", "-n", "2", "-w", "1"]
SIZE_COUNT = 7  # 0 1 9 87 843 8177 79316
EVERYTHING = SIZE_COUNT * 10 * (2 * 4 + 2)


def measure_everything(start):
    count = 0
    for operation in ("all_reduce", "reduce_scatter", "broadcast", "all_gather"):
        done = start(PERF, "--op", operation, "-d", "all", "-o", "all", "-c", "1", *SIZES)
        reduces = operation in ("all_reduce", "reduce_scatter")
        check_rows(done, SIZE_COUNT * 10 * (4 if reduces else 1))
        count += len(rows(done.stdout))
    assert count == EVERYTHING


@needs_mpirun
@pytest.mark.parametrize("ranks", [2, 3])
def test_everything_over_mpi(ranks):
    measure_everything(lambda *command: mpirun(ranks, *command, "--backend", "mpi"))


@pytest.mark.parametrize("ranks, nodes", [(2, 1), (3, 1), (3, 2)])
def test_everything_over_local_in_forked_ranks(ranks, nodes):
    measure_everything(lambda *command: run(*command, "--ranks", ranks, "--nodes", nodes))


@needs_mpirun
def test_local_backend_under_mpirun():
    done = mpirun(2, PERF, "--backend", "local", "-b", "4K", "-e", "64K")
    check_rows(done, 3)
    assert "af-perf: local, 2 ranks on 1 node" in done.stdout


def test_foreign_memory_and_one_rank():
    check_rows(run(PERF, "--ranks", "2", "--foreign", "-z", "1", "-b", "1M", "-e", "1M"), 1)
    check_rows(run(PERF, "-b", "1K", "-e", "1K"), 1)


def test_barrier_has_one_row_without_a_check():
    done = run(PERF, "--ranks", "2", "--op", "barrier", "-d", "all", "-b", "8", "-e", "1M")
    assert done.returncode == 0, done.stderr
    (row,) = rows(done.stdout)
    assert row[8] == "N/A" and float(row[5]) > 0


def test_columns_are_those_of_nccl_tests():
    done = run(PERF, "--ranks", "2", "-b", "1M", "-e", "1M", "-c", "0")
    lines = [line for line in done.stdout.splitlines() if line.startswith("#") and "algbw" in line]
    assert lines[0].lstrip("#").split() == [
        "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
        "algbw", "busbw", "#wrong"]
    (row,) = rows(done.stdout)
    assert row[:5] == ["1048576", "262144", "float", "sum", "-1"] and row[8] == "N/A"
    # Of two ranks the bus bandwidth of an all-reduce is the algorithm's; both follow from the time.
    assert row[6] == row[7]
    assert float(row[6]) == pytest.approx(1048576 / float(row[5]) / 1e3, rel=0.05, abs=0.01)


# --- the mpi backend when something is missing ---------------------------------------------------


@needs_mpirun
@pytest.mark.parametrize("case", ["exact", "own-init"])
def test_mpi_scales_averages_and_leaves_inputs_alone(case):
    done = mpirun(2, CASES, case)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 of 2, mpi: 0 wrong",
                                                    "rank 1 of 2, mpi: 0 wrong"]


@needs_mpirun
def test_mpi_names_the_rank_that_does_not_come():
    done = mpirun(3, CASES, "late", env={"AF_COLLECTIVE_TIMEOUT": "1"}, timeout=60)
    for rank in (0, 1):
        assert re.search(rf"^rank {rank}: timeout, ranks 2, ", done.stdout, re.M), done.stdout
        assert f"rank {rank}: broken" in done.stdout
    assert "rank 2 did not take part within 1 s" in done.stdout
    assert done.returncode != 0


@needs_mpirun
def test_mpi_abort_reaches_the_other_ranks():
    start = time.monotonic()
    done = mpirun(3, CASES, "abort", env={"AF_COLLECTIVE_TIMEOUT": "100"}, timeout=60)
    for rank in (0, 2):
        line = re.search(rf"^rank {rank}: aborted, ranks 1, after .*$", done.stdout, re.M)
        assert line and "rank 1 aborted: disk full" in line[0], done.stdout
        assert f"rank {rank}: broken" in done.stdout
    assert time.monotonic() - start < 50  # long before the timeout


@needs_mpirun
def test_mpi_a_killed_rank_ends_the_job():
    done = mpirun(3, CASES, "killed", env={"AF_COLLECTIVE_TIMEOUT": "100"}, timeout=60)
    assert done.returncode != 0
    assert "no failure" not in done.stdout


# --- bad input: one clear line, exit code 2 ------------------------------------------------------


@pytest.mark.parametrize("words, env, line", [
    (["-b", "1x"], {}, r"not a size: '1x' \(examples: 8, 64K, 25M, 1G\)"),
    (["-b", "9", "-e", "8"], {}, "first size 9 is above the last, 8"),
    (["--op", "scan"], {}, "unknown operation 'scan': one of all_reduce, .*"),
    (["-d", "f8"], {}, "unknown type 'f8': one of i8, .*"),
    (["--backend", "gloo"], {}, "unknown backend 'gloo': one of auto, local, mpi, nccl"),
    (["-q"], {}, r"The following argument was not expected: -q \(af-perf --help shows the options\)"),
    (["-n", "0"], {}, "--iters: Value 0 not in range .*"),
    (["-r", "1"], {}, "root 1 is not a rank of a world of 1"),
    (["--backend", "mpi"], {"AF_SOCKET": "@none", "RANK": "0", "WORLD_SIZE": "2"},
     "the mpi backend cannot run under af-launch .*"),
    (["--backend", "nccl"], {}, "(the nccl backend works on the memory of a GPU.*|"
     "this libaf_collectives was built without the backend nccl|cannot load libcudart.*)"),
    (["--rendezvous", "/proc/none/x"], {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"},
     "cannot make /proc/none/x: No such file or directory"),
])
def test_bad_input_is_one_line(words, env, line):
    done = run(PERF, *words, env=env, timeout=20)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.fullmatch(f"af-perf: {line}\n", done.stderr), done.stderr


@needs_mpirun
def test_mpi_without_mpirun_says_so():
    """A mismatch of PMI versions does not fail in MPI: it gives N worlds of one."""
    done = run(PERF, env={"AF_BACKEND": "mpi", "RANK": "1", "WORLD_SIZE": "2"}, timeout=30)
    assert done.returncode == 2
    assert "MPI says rank 0 of 1, but rank 1 of 2 was asked for" in done.stderr


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="this machine has a GPU")
@pytest.mark.parametrize("backend", ["nccl", "local"])
def test_a_device_without_a_gpu_is_one_line(backend):
    done = run(PERF, "--backend", backend, "--device", "0", "--ranks", "1", timeout=30)
    assert done.returncode == 2
    assert re.fullmatch("af-perf: (.* CUDA sees no GPU here.*|cannot load libcudart.*|.*built without.*)\n",
                        done.stderr), done.stderr


def test_a_missing_rank_is_named():
    # Rank 0 of a step of two, whose other rank never starts.
    with tempfile.TemporaryDirectory() as directory:
        done = run(PERF, "--timeout", "1", "--rendezvous", directory + "/meet",
                   env={"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, timeout=30)
    assert done.returncode == 2
    assert re.search(r"^af-perf: .*rank 1\b", done.stderr) and done.stderr.count("\n") == 1


def test_nothing_is_left_behind():
    with tempfile.TemporaryDirectory() as directory:
        check_rows(run(PERF, "--ranks", "2", "-b", "8", "-e", "8", env={"TMPDIR": directory}), 1)
        assert os.listdir(directory) == []


# --- on the cluster ------------------------------------------------------------------------------


def test_srun_with_pmix_uses_mpi_over_two_nodes(cluster):
    done = unless_open_mpi_crashed(
        lambda: cluster.run("srun", "-N2", "-n3", "--mpi=pmix", IN_CLUSTER, "-b", "1K", "-e", "256K",
                            check=False), lambda done: done.stderr)
    check_rows(done, 5)
    assert "af-perf: mpi, 3 ranks" in done.stdout


def test_srun_without_mpi_uses_local_over_two_nodes(cluster):
    done = cluster.run("srun", "-N2", "-n4", "--mpi=none", IN_CLUSTER, "-b", "1K", "-e", "1M",
                       "--rendezvous", f"{cluster.cwd}/meet", "--op", "all_gather")
    check_rows(done, 6)
    assert "local, 4 ranks on 2 nodes" in done.stdout


def test_under_af_launch(cluster):
    done = cluster.run("srun", "-N2", "-n4", "--gpus-per-task=1", "/opt/af/build/bin/af-launch",
                       IN_CLUSTER, "-b", "1K", "-e", "256K", "--backend", "local")
    text = re.sub(r"^\[[^\]]*\] ?", "", done.stdout, flags=re.M)  # the launcher's prefix of a rank
    assert "local, 4 ranks on 2 nodes" in text, done.stdout + done.stderr
    assert "# Out of bounds values : 0 OK" in text
