# SPDX-License-Identifier: Apache-2.0
"""Plain Slurm commands are as they were: stdout, stderr, exit code and `scontrol show job` of the
same lines with the plugin and without, on a submit host and inside a job."""

import json
import re

import pytest

from spank_commands import VOLATILE

# Run in a shell, in a directory with plain.sh (no directives), lines.sh (directives), fails.sh.
LINES = [
    "sbatch plain.sh",
    "sbatch --parsable plain.sh",
    "sbatch -n2 -c2 --mem=1G -t 5 -J name plain.sh one 'two words'",
    "sbatch --gres=gpu:t4:1 plain.sh",
    "sbatch -p spare --gpus=2 --mem-per-cpu=512M plain.sh",
    "sbatch --gpus-per-task=1 -n2 -N2 plain.sh",
    "sbatch -N2 --ntasks-per-node=2 --exclusive plain.sh",
    "sbatch --array=1-2%1 plain.sh",
    "sbatch --wrap 'echo wrapped'",
    "sbatch < plain.sh",
    "sbatch lines.sh",
    "sbatch --test-only -n1 plain.sh",
    "sbatch -n1 : -n2 plain.sh",
    "sbatch -W fails.sh",
    "sbatch --no-such-option plain.sh",
    "sbatch no-such-script.sh",
    "sbatch --mem=nonsense plain.sh",
    "srun -n2 echo hello",
    "srun -n4 -c1 -l sh -c 'echo $SLURM_NTASKS'",
    "srun -w n[1-2] -n2 sh -c 'exit $SLURM_PROCID'",
    "srun --gres=gpu:1g.5gb:2 sh -c 'echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l'",
    # In an af job, four tasks have no room with a worker's CPUs each, and as many as ever without.
    "env -u SLURM_GPUS_PER_TASK -u SLURM_MEM_PER_GPU srun -n4 echo four",
    "srun --no-such-option true",
    "srun no-such-program",
    "salloc -n2 srun echo in salloc",
    "salloc --gpus=1 sh -c 'echo $SLURM_NTASKS; exit 4'",
    "salloc --export=ALL --no-such-option true",
]

# Runs each line and prints what came of it as JSON. Jobs that a line submits are held, so that
# their fields do not depend on the moment.
DRIVER = r"""
import json, os, re, subprocess, sys
os.chdir(sys.argv[1])
results = []
for line in json.loads(open("lines.json").read()):
    env = dict(os.environ)
    if "-W" not in line:
        line = line.replace("sbatch ", "sbatch --hold ", 1) if line.startswith("sbatch") else line
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=env, timeout=60)
    jobs = []
    ids = re.findall(r"(?:batch job |^)(\d+)$", done.stdout, re.M) if "sbatch" in line else []
    for jobid in ids:
        jobs.append(subprocess.run(["scontrol", "show", "job", "-o", jobid], capture_output=True,
                                   text=True).stdout)
        subprocess.run(["scancel", jobid])
    results.append({"line": line, "code": done.returncode, "out": done.stdout, "err": done.stderr,
                    "jobs": jobs})
print(json.dumps(results))
"""


def prepare(cluster):
    cluster.write("plain.sh", "#!/bin/bash\nhostname\n", 0o755)
    cluster.write("lines.sh", "#!/bin/bash\n#SBATCH -n 2\n#SBATCH --gres=gpu:1\nhostname\n", 0o755)
    cluster.write("fails.sh", "#!/bin/bash\nexit 9\n", 0o755)
    cluster.write("driver.py", DRIVER)
    cluster.write("lines.json", json.dumps(LINES))


OF_THE_MOMENT = [
    "queued and waiting",
    "been allocated",
    "Pending job allocation",
    "has been revoked",
    "step creation temporarily disabled",
    "Step created for",
]


def comparable(text):
    """Without job ids, times, the node that was free, and what srun and salloc say of waiting."""
    lines = [l for l in text.splitlines() if not any(words in l for words in OF_THE_MOMENT)]
    # The order of a step's messages about its tasks is that of their arrival.
    text = "\n".join(sorted(lines))
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\bn[1-3]\b", "NODE", text)
    return re.sub(r"(?i)(job|allocation|StepId=|JobId=|^)\s?\d+", r"\1 ID", text, flags=re.M)


def fields(show_job):
    words = [w.partition("=") for record in show_job.splitlines() for w in record.split(" ")]
    return sorted(
        (k, v)
        for k, eq, v in words
        if eq
        and k not in VOLATILE
        and k not in ("ArrayJobId", "HetJobId", "HetJobIdSet", "HetJobOffset")
    )


def assert_equal(with_plugin, without):
    assert len(with_plugin) == len(without) == len(LINES)
    for ours, theirs in zip(with_plugin, without):
        line = ours["line"]
        assert ours["code"] == theirs["code"], line
        assert comparable(ours["out"]) == comparable(theirs["out"]), line
        assert comparable(ours["err"]) == comparable(theirs["err"]), line
        assert [fields(j) for j in ours["jobs"]] == [fields(j) for j in theirs["jobs"]], line


@pytest.fixture(scope="module")
def plain_cluster(request):
    """A cluster without the plugin."""
    from conftest import new_name
    from sandbox import Sandbox

    sandbox = Sandbox(new_name(), plugin="none")
    try:
        sandbox.up()
        yield sandbox
    finally:
        sandbox.remove()


def run_lines(cluster, *around):
    cwd = cluster.cwd or "/work/users/ada"
    done = cluster.run(*around, "/usr/bin/python3", f"{cwd}/driver.py", cwd, timeout=240)
    return json.loads(done.stdout)


def test_on_a_submit_host(cluster, plain_cluster):
    prepare(cluster)
    prepare(plain_cluster)
    ours, theirs = run_lines(cluster), run_lines(plain_cluster)
    assert_equal(ours, theirs)
    # The comparison has something to compare.
    assert sum(len(r["jobs"]) for r in theirs) >= 11
    assert {r["code"] for r in theirs} >= {0, 1, 4, 9}


def run_lines_in_job(cluster, *options):
    cwd = cluster.cwd or "/work/users/ada"
    script = f"#!/bin/bash\nexec /usr/bin/python3 {cwd}/driver.py {cwd} > {cwd}/results.json\n"
    cluster.write("outer.sh", script, 0o755)
    jobid = int(cluster.run("sbatch", "--parsable", *options, "outer.sh").stdout)
    job = cluster.wait_state(jobid, "ENDED", timeout=240)
    assert job["JobState"] == "COMPLETED", job
    return json.loads(cluster.read("results.json"))


def test_inside_an_af_job(cluster, plain_cluster):
    """As inside a plain job of the request that af makes. What Slurm itself breaks there (an inner
    `srun --mem` beside SLURM_MEM_PER_GPU) is broken in both."""
    prepare(cluster)
    prepare(plain_cluster)
    native = ["-p", "kept", "-n2", "--gpus-per-task=1", "-c8", "--mem-per-gpu=32G"]
    ours = run_lines_in_job(cluster, "--af-n-workers=2")
    theirs = run_lines_in_job(plain_cluster, *native)
    assert_equal(ours, theirs)


def test_an_inner_submission_is_plain_and_its_steps_run(cluster):
    """Nothing of the outer job's settings reaches a plain job that is submitted from it."""
    cluster.write(
        "inner.sh",
        "#!/bin/bash\nenv | grep -E '^AF_|^SRUN_CPUS|SPANK.*af_' | sort\n"
        "srun sh -c 'echo step of $SLURM_NTASKS'\n",
        0o755,
    )
    cluster.write("outer.sh", "#!/bin/bash\nsbatch --parsable -o inner.out inner.sh\n", 0o755)
    jobid = int(
        cluster.run(
            "sbatch", "--parsable", "-o", "outer.out", "--af-n-workers=2", "outer.sh"
        ).stdout
    )
    cluster.wait_state(jobid, "COMPLETED")
    cluster.wait_state(int(cluster.read("outer.out").splitlines()[0]), "ENDED")
    assert cluster.read("inner.out") == "step of 1\n"


def test_options_typed_inside_a_job_count_and_variables_do_not(cluster):
    cluster.write("inner.sh", "#!/bin/bash\n", 0o755)
    cluster.write(
        "outer.sh",
        """#!/bin/bash
export AF_N_WORKERS=3
plain=$(sbatch --hold --parsable inner.sh)
typed=$(sbatch --hold --parsable --af-n-workers=4 inner.sh)
for id in $plain $typed; do scontrol show job -o $id | grep -o 'NumTasks=[0-9]*'; done
srun --af-n-workers=2 sh -c 'echo tasks $SLURM_NTASKS'
""",
        0o755,
    )
    for options in (["--af-n-workers=2"], ["-n2", "-c8", "--gpus-per-task=1"]):
        jobid = int(
            cluster.run("sbatch", "--parsable", "-o", "outer.out", *options, "outer.sh").stdout
        )
        cluster.wait_state(jobid, "ENDED")
        assert cluster.read("outer.out").splitlines() == [
            "NumTasks=1",
            "NumTasks=4",
            "tasks 2",
            "tasks 2",
        ], options
