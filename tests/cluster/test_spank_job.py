# SPDX-License-Identifier: Apache-2.0
"""What an af job's script and steps find on the node: variables, PATH, CPUs, run id; and how the
job fails when something is wrong there."""

import re

import pytest

from sandbox import wait_for

SHOW = "env | grep -E '^(AF_|PATH=|SRUN_CPUS|SLURM_CPUS_PER|VIRTUAL_ENV|CONDA_PREFIX)' | sort"


def run_job(cluster, script, *options, env=None, state="COMPLETED"):
    """Submits `script` and gives its output's lines when it has ended."""
    jobid = cluster.sbatch(script, *options, env=env)
    job = cluster.wait_state(jobid, "ENDED")
    output = cluster.read(f"slurm-{jobid}.out")
    assert job["JobState"] == state, f"{job['JobState']} {job.get('Reason')}: {output}"
    return jobid, output.splitlines()


def variables(lines):
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


def test_the_script_sees_the_settings_in_force(cluster):
    jobid, lines = run_job(
        cluster, SHOW, "--af-n-workers=2", "--af-cpus-per-worker=4", "--af-min-gpu-memory-gb=8"
    )
    seen = variables(lines)
    assert seen["AF_MAX_WORKERS"] == "2" and seen["AF_N_WORKERS"] == "2"
    assert seen["AF_CPUS_PER_WORKER"] == "4" and seen["AF_RAM_PER_WORKER_GB"] == "32"
    assert seen["AF_GPUS_PER_WORKER"] == "1" and seen["AF_MIN_GPU_MEMORY_GB"] == "8"
    assert seen["AF_RUN_ID"] == str(jobid) and seen["AF_ATTEMPT"] == "0"
    assert "AF_ENV" not in seen and "AF_EXPLAIN" not in seen


def test_max_workers_alone(cluster):
    _, lines = run_job(cluster, SHOW, "--af-max-workers=3")
    seen = variables(lines)
    assert seen["AF_MAX_WORKERS"] == "3" and "AF_N_WORKERS" not in seen


def test_an_overruled_variable_does_not_stay(cluster):
    _, lines = run_job(
        cluster, SHOW, "--af-max-workers=2", env={"AF_N_WORKERS": 4, "AF_CPUS_PER_WORKER": 2}
    )
    seen = variables(lines)
    assert seen["AF_MAX_WORKERS"] == "2" and "AF_N_WORKERS" not in seen
    assert seen["AF_CPUS_PER_WORKER"] == "2"


@pytest.mark.parametrize("export", ["ALL", "NONE", "NIL", "MINE=1", "ALL,MINE=1"])
def test_case_b32_whatever_is_exported(cluster, export):
    """Script and steps have AF_* and PATH; steps find programs."""
    script = SHOW + '\necho step\nsrun -n1 sh -c "' + SHOW + '; env | grep ^MINE"\n'
    jobid, lines = run_job(
        cluster,
        script,
        "--af-n-workers=1",
        f"--export={export}",
        state="COMPLETED" if "MINE" in export else "FAILED",
    )
    at = lines.index("step")
    for part in (lines[:at], lines[at:]):
        seen = variables(part)
        assert seen["AF_MAX_WORKERS"] == "1" and seen["AF_RUN_ID"] == str(jobid)
        assert "/usr/bin" in seen["PATH"].split(":")
    assert ("MINE=1" in lines[at:]) == ("MINE" in export)


@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_srun_tasks_see_them_too(cluster, export):
    done = cluster.run(
        "srun", "--af-n-workers=2", f"--export={export}", "/bin/sh", "-c", "/usr/bin/env"
    )
    for name in ("AF_MAX_WORKERS=2", "AF_N_WORKERS=2"):
        assert done.stdout.splitlines().count(name) == 2
    assert len(re.findall(r"^AF_RUN_ID=\d+$", done.stdout, re.M)) == 2
    assert len(re.findall(r"^PATH=", done.stdout, re.M)) == 2


def test_the_shell_of_salloc_and_its_steps(cluster):
    done = cluster.run(
        "salloc",
        "--af-n-workers=2",
        "sh",
        "-c",
        f"{SHOW}; echo step; srun -n1 {{}} ".replace("{}", f'sh -c "{SHOW}"'),
    )
    shell, step = done.stdout.split("step\n")
    assert variables(shell.splitlines())["AF_N_WORKERS"] == "2"
    assert variables(step.splitlines())["AF_N_WORKERS"] == "2"
    assert variables(step.splitlines())["AF_RUN_ID"].isdigit()


def test_case_b34_each_task_has_its_workers_cpus(cluster):
    """By what Slurm says it gave: the machine under the sandbox has fewer CPUs than its nodes."""
    script = """
srun sh -c 'echo task $SLURM_PROCID $SLURM_CPUS_PER_TASK'
srun -n1 sh -c 'echo one $SLURM_CPUS_PER_TASK; scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID -o'
"""
    _, lines = run_job(cluster, script, "--af-n-workers=2")
    assert sorted(l for l in lines if l.startswith("task")) == ["task 0 8", "task 1 8"]
    assert "one 8" in lines
    assert any("CPUs=8 " in line for line in lines if "StepId=" in line)
    done = cluster.run(
        "srun",
        "--af-n-workers=2",
        "--af-cpus-per-worker=4",
        "sh",
        "-c",
        "echo $SLURM_CPUS_PER_TASK",
    )
    assert done.stdout.split() == ["4", "4"]
    done = cluster.run(
        "salloc", "--af-n-workers=2", "srun", "sh", "-c", "echo $SLURM_CPUS_PER_TASK"
    )
    assert done.stdout.split() == ["8", "8"]


def test_the_run_id_is_stable_over_requeues(cluster):
    script = """
echo run $AF_RUN_ID attempt $AF_ATTEMPT
srun -n1 sh -c 'echo step $AF_RUN_ID attempt $AF_ATTEMPT'
[ "$AF_ATTEMPT" = 1 ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }
"""
    jobid = cluster.sbatch(script, "--af-n-workers=1", "--requeue", "--open-mode=append")
    wait_for(lambda: cluster.job(jobid).get("Restarts") == "1", what="a restart")
    cluster.wait_state(jobid, "COMPLETED", timeout=60)
    lines = cluster.read(f"slurm-{jobid}.out").splitlines()
    ours = [l for l in lines if l.startswith(("run ", "step "))]
    assert ours == [f"{what} {jobid} attempt {n}" for n in (0, 1) for what in ("run", "step")]


def test_each_task_of_an_array_is_a_run_of_its_own(cluster):
    script = "echo run $AF_RUN_ID; srun -n1 sh -c 'echo step $AF_RUN_ID'"
    jobid = cluster.sbatch(script, "--af-n-workers=1", "--array=3,5", "-o", "array-%a.out")
    for task in (3, 5):
        wait_for(
            lambda: cluster.host_path(f"array-{task}.out").exists()
            and "step" in cluster.read(f"array-{task}.out"),
            what=f"task {task}",
        )
        assert cluster.read(f"array-{task}.out").splitlines() == [
            f"run {jobid}_{task}",
            f"step {jobid}_{task}",
        ]


def test_case_b43_the_environment_is_first_in_path(cluster):
    cluster.write("env/bin/which-env", "#!/bin/sh\necho from the environment\n", 0o755)
    cluster.write("env/pyvenv.cfg", "")
    prefix = f"{cluster.cwd}/env"
    script = f'which-env\n{SHOW}\nsrun -n1 which-env\necho step\nsrun -n1 sh -c "{SHOW}"\n'
    # A relative path is one of the submit directory; nothing is written into the prefix.
    cluster.run("chmod", "-R", "a-w", "env")
    for option in (f"--af-env={prefix}", "--af-env=env", f"--af-env={prefix}/"):
        _, lines = run_job(cluster, script, "--af-n-workers=1", option)
        assert lines.count("from the environment") == 2
        for part in (lines[: lines.index("step")], lines[lines.index("step") :]):
            seen = variables(part)
            assert seen["AF_ENV"] == prefix and seen["VIRTUAL_ENV"] == prefix
            path = seen["PATH"].split(":")
            assert path[0] == f"{prefix}/bin" and path.count(path[0]) == 1
    cluster.run("chmod", "-R", "u+w", "env")


def test_an_environment_that_is_gone_on_the_node_fails_the_job_not_the_node(cluster):
    cluster.run("mkdir", "-p", "gone/bin")
    jobid = cluster.sbatch("echo ran", "--hold", "--af-n-workers=1", "--af-env=gone")
    cluster.run("rm", "-r", "gone")
    cluster.run("scontrol", "release", str(jobid))
    job = cluster.wait_state(jobid, "ENDED")
    output = cluster.read(f"slurm-{jobid}.out")
    assert job["JobState"] == "FAILED" and "ran" not in output
    assert re.search(
        r"af: --af-env: .*/gone/bin cannot be entered on node n\d: No such file", output
    )
    assert set(cluster.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()) <= {
        "idle",
        "mixed",
        "allocated",
    }


def test_a_plain_job_has_nothing_of_it(cluster):
    _, lines = run_job(cluster, "env | grep -E '^AF_|SPANK|SRUN_CPUS' || echo nothing")
    assert lines == ["nothing"]


def test_what_a_job_leaves_behind_is_ended(cluster):
    """A daemon that has left its session, from the script and from a step; another job's stays."""
    other = cluster.sbatch("exec sleep 300", name="other.sh")
    cluster.wait_running(other)
    script = """
(setsid sleep 4321 > /dev/null 2>&1 < /dev/null &)
srun -n1 sh -c '(setsid sleep 4321 &); true'
"""
    jobid, _ = run_job(cluster, script, "--af-n-workers=1")
    for node in ("n1", "n2", "n3"):
        assert (
            cluster.run("pgrep", "-f", "sleep 4321", root=True, node=node, check=False).stdout == ""
        )
    assert cluster.state(other) == "RUNNING"
    assert cluster.state(jobid) == "COMPLETED"


def test_a_task_that_ends_first_takes_no_other_with_it(cluster):
    """The sweep comes when the last task of the node has ended, and only on that node."""
    done = cluster.run(
        "srun",
        "-N2",
        "--af-n-workers=3",
        "--af-min-gpu-memory-gb=16",
        "sh",
        "-c",
        """
[ $SLURM_PROCID != 0 ] || { (setsid sleep 4322 > /dev/null 2>&1 < /dev/null &); exit 0; }
sleep 1; echo task $SLURM_PROCID has ended by itself""",
    )
    assert sorted(done.stdout.splitlines()) == [f"task {n} has ended by itself" for n in (1, 2)]
    for node in ("n1", "n2"):
        assert (
            cluster.run("pgrep", "-f", "sleep 4322", root=True, node=node, check=False).stdout == ""
        )


def test_an_interactive_step(make_cluster):
    """With use_interactive_step salloc's shell runs on a node, and is told all."""
    cluster = make_cluster(slurm_conf=["LaunchParameters=use_interactive_step"])
    done = cluster.run(
        "script",
        "-qec",
        "salloc --af-n-workers=2",
        "/dev/null",
        timeout=60,
        input="""
echo run=$AF_RUN_ID workers=$AF_N_WORKERS; srun sh -c 'echo cpus=$SLURM_CPUS_PER_TASK'; exit
""",
    )
    assert re.search(r"^run=\d+ workers=2", done.stdout, re.M)
    assert len(re.findall(r"^cpus=8", done.stdout, re.M)) == 2


def test_root_runs_nothing_of_the_persons(cluster):
    """Case B52 (openhpc/ohpc#591): text of the person reaches root as data only."""
    nasty = "env$(touch ${PWD:-/work}/owned)`touch /work/owned`;touch owned"
    cluster.run("mkdir", "-p", f"{nasty}/bin")
    jobid, lines = run_job(cluster, SHOW, "--af-n-workers=1", f"--af-env={nasty}")
    assert variables(lines)["AF_ENV"] == f"{cluster.cwd}/{nasty}"
    found = cluster.run("find", "/work", "-name", "owned", root=True, check=False).stdout
    assert found == "", found
