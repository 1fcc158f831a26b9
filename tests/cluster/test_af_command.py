# SPDX-License-Identifier: Apache-2.0
"""`af` as a person calls it: offline, from the site file alone."""
import os
import subprocess

import pytest

from sandbox import REPO

SITE = """\
gpus:
  - {name: t4, gres_type: t4, memory_gb: 16, max_per_node: 2, total: 4}
  - {name: 1g.5gb, gres_type: 1g.5gb, memory_gb: 5, mig: yes, max_per_node: 4, total: 4}
submit: {kept: {partition: kept}}
"""


@pytest.fixture
def af(tmp_path):
    site = tmp_path / "af.yaml"
    site.write_text(SITE)

    def call(*words, **variables):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("AF_", "SLURM_"))}
        return subprocess.run([REPO / "build/bin/af", *words], capture_output=True, text=True, cwd=tmp_path,
                              timeout=20, env={**clean, "AF_CONFIG": str(site), **variables})
    call.directory = tmp_path
    return call


def request_line(done):
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return lines[lines.index("af: request") + 1].strip()


def test_explain_takes_settings_from_script_environment_and_line(af):
    (af.directory / "t.sh").write_text("#!/bin/bash\n#SBATCH --af-n-workers=2\n#SBATCH --af-cpus-per-worker=2\n")
    done = af("explain", "--af-ram-per-worker-gb=16", "t.sh", AF_CPUS_PER_WORKER="4")
    assert request_line(done) == ("sbatch --ntasks=2 --gpus-per-task=1 --cpus-per-task=4 --mem-per-gpu=16G "
                                  "--partition=kept t.sh")


def test_explain_ignores_the_variables_of_the_job_it_runs_in(af):
    done = af("explain", AF_N_WORKERS="3", AF_MAX_WORKERS="3", SLURM_JOB_ID="7")
    assert request_line(done).startswith("sbatch --ntasks=1 ")


def test_explain_leaves_the_programs_own_arguments_alone(af):
    done = af("explain", "--tool=srun", "--af-n-workers=2", "python", "x.py", "--af-n-workers=3", "-n", "5")
    line = request_line(done)
    assert line.startswith("srun --ntasks=2 ") and line.endswith(" python x.py --af-n-workers=3 -n 5")


@pytest.mark.parametrize("words, message", [
    (["explain", "--af-max-worker=3"], "did you mean --af-max-workers?"),
    (["explain", "--af-min-gpu-memory-gb=40"], "no GPU here has 40 GB: the largest has 16 GB"),
    (["explain", "--af-n-workers=0"], "--af-n-workers=0: a whole number of at least 1 is expected"),
    (["explain", "--af-n-workers=9"], "more than there are"),
    (["explain", "--af-n-workers=2", "--af-max-workers=2"], "exclude each other"),
    (["explain", "--gres=gpu:1"], "--gres=gpu:1 contradicts"),
    (["explain", "-n4"], "--ntasks=4 contradicts"),
    (["explain", "--af-env=/nonexistent/env"], "--af-env: /nonexistent/env does not exist"),
    (["explain", "nothing.sh"], "cannot read nothing.sh: No such file or directory"),
    (["explain", "--partitoin=x"], "did you mean '--partition'?"),
    (["expalin"], "did you mean 'explain'?"),
    ([], "a command is needed"),
    (["settings", "--config=/nonexistent"], "cannot read /nonexistent: No such file or directory"),
    (["check", "nothing.sh"], "cannot read nothing.sh: No such file or directory"),
])
def test_a_mistake_costs_one_line_and_a_code(af, words, message):
    done = af(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("af: ") and done.stderr.count("\n") == 1
    assert message in done.stderr


def test_check_finds_what_slurm_ignores(af):
    (af.directory / "t.sh").write_text("#!/bin/bash\nset -e\n#SBATCH --af-max-workers=4\n")
    done = af("check", "t.sh")
    assert done.returncode == 1
    assert done.stderr == ("t.sh: line 3: Slurm ignores '#SBATCH --af-max-workers=4': it stands after the first "
                           "command (line 2): move it above\n")


def test_check_of_a_good_script_and_of_a_broken_site_file(af):
    (af.directory / "t.sh").write_text("#!/bin/bash\n#SBATCH --af-max-workers=4\nsrun true\n")
    assert af("check", "t.sh").returncode == 0
    broken = af.directory / "broken.yaml"
    broken.write_text(SITE + "gpu: 3\n")
    done = af("check", "--config", str(broken))
    assert done.returncode == 2
    assert done.stderr.startswith(f"af: {broken}:5: gpu: there is no such key, did you mean 'gpus'?")


def test_help_and_version(af):
    version = (REPO / "VERSION").read_text().strip()
    assert af("--version").stdout == f"af {version}\n"
    for words in (["help"], ["--help"]):
        done = af(*words)
        assert done.returncode == 0 and "explain" in done.stdout and "settings" in done.stdout
    assert "--af-max-workers" in af("help", "explain").stdout
