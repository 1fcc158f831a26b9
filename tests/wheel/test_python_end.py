# SPDX-License-Identifier: Apache-2.0
"""A Python that has trained over Gloo ends as it should under af-launch: PyTorch alone aborts it now and then."""
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LAUNCH = HERE.parents[1] / "build/bin/af-launch"


def test_gloos_threads_put_away_what_they_hold_before_python_ends(tmp_path):
    late = tmp_path / "late.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", late, HERE / "late_gloo.c", "-ldl"], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "AF_", "PMI", "PYTHON"))}
    done = subprocess.run([LAUNCH, "--workers", "2", "env", f"LD_PRELOAD={late}", sys.executable, HERE / "late_ending.py"],
                          cwd=tmp_path, env={**clean, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "[0] done" in done.stdout and "[1] done" in done.stdout
