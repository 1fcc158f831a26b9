# SPDX-License-Identifier: Apache-2.0
"""--af-* options become the same Slurm request through every command and every source."""

import re

import pytest

from sandbox import wait_for
from spank_commands import hold, request_of, shape, shape_of

OPTIONS = ["--af-n-workers=3", "--af-cpus-per-worker=4", "--af-ram-per-worker-gb=16"]
SHAPE = shape(3, cpus=4, mem_gb=16)


def job_script(cluster, *directives):
    cluster.write(
        "job.sh",
        "#!/bin/bash\n" + "".join(f"#SBATCH {d}\n" for d in directives) + "hostname\n",
        mode=0o755,
    )


def allocate(cluster, command, *options, env=None):
    """Runs srun or salloc with a program that shows its own job, and returns that job's shape."""
    done = cluster.run(
        command,
        *options,
        "sh",
        "-c",
        '[ "${SLURM_PROCID:-0}" = 0 ] && scontrol show job -o $SLURM_JOB_ID || :',
        env=env,
    )
    fields = dict(word.partition("=")[::2] for word in done.stdout.split(" "))
    return {name: fields.get(name, "") for name in SHAPE}


def test_command_line(cluster):
    job_script(cluster)
    assert shape_of(cluster, hold(cluster, *OPTIONS)) == SHAPE


def test_script_lines(cluster):
    job_script(cluster, *OPTIONS)
    assert shape_of(cluster, hold(cluster)) == SHAPE


def test_variables(cluster):
    job_script(cluster)
    env = {"AF_N_WORKERS": 3, "AF_CPUS_PER_WORKER": 4, "AF_RAM_PER_WORKER_GB": 16}
    assert shape_of(cluster, hold(cluster, env=env)) == SHAPE


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_srun_and_salloc(cluster, command):
    assert allocate(cluster, command, *OPTIONS) == SHAPE
    env = {"AF_N_WORKERS": 3, "AF_CPUS_PER_WORKER": 4, "AF_RAM_PER_WORKER_GB": 16}
    assert allocate(cluster, command, env=env) == SHAPE


def test_the_sources_give_equal_jobs_in_every_field(cluster):
    job_script(cluster)
    by_line = request_of(cluster, hold(cluster, *OPTIONS))
    by_variables = request_of(
        cluster,
        hold(cluster, env={"AF_N_WORKERS": 3, "AF_CPUS_PER_WORKER": 4, "AF_RAM_PER_WORKER_GB": 16}),
    )
    job_script(cluster, *OPTIONS)
    by_script = request_of(cluster, hold(cluster))
    native = request_of(
        cluster,
        (
            hold(
                cluster,
                "--ntasks=3",
                "--gpus-per-task=1",
                "-c4",
                "--mem-per-gpu=16G",
                "-p",
                "kept",
                script="native.sh",
            )
            if cluster.write("native.sh", "#!/bin/bash\nhostname\n", 0o755)
            else 0
        ),
    )
    assert by_line == by_variables == by_script == native


def test_precedence_is_slurms(cluster):
    job_script(cluster, "--af-n-workers=1", "--af-cpus-per-worker=2")
    assert shape_of(cluster, hold(cluster)) == shape(1, cpus=2)
    env = {"AF_N_WORKERS": 2}
    assert shape_of(cluster, hold(cluster, env=env)) == shape(2, cpus=2)
    assert shape_of(cluster, hold(cluster, "--af-n-workers=3", env=env)) == shape(3, cpus=2)


def test_a_later_source_replaces_the_other_worker_setting(cluster):
    job_script(cluster, "--af-n-workers=4")
    assert shape_of(cluster, hold(cluster, "--af-max-workers=3")) == shape(1)
    assert shape_of(cluster, hold(cluster, env={"AF_MAX_WORKERS": 3})) == shape(1)
    job_script(cluster, "--af-max-workers=4")
    assert shape_of(cluster, hold(cluster, "--af-n-workers=3")) == shape(3)


def test_a_bad_value_that_is_replaced_does_no_harm(cluster):
    job_script(cluster, "--af-n-workers=many")
    assert shape_of(cluster, hold(cluster, "--af-n-workers=2")) == shape(2)


def test_abbreviations(cluster):
    job_script(cluster)
    assert shape_of(cluster, hold(cluster, "--af-n=2", "--af-cpu=4")) == shape(2, cpus=4)
    assert shape_of(cluster, hold(cluster, "--af-n", "2")) == shape(2)


def test_variables_other_than_workers_make_no_af_job(cluster):
    """An AF_ENV or AF_CPUS_PER_WORKER in somebody's .bashrc is a default, not a request."""
    job_script(cluster)
    plain = request_of(cluster, hold(cluster))
    assert request_of(cluster, hold(cluster, env={"AF_CPUS_PER_WORKER": 4})) == plain
    assert shape_of(
        cluster, hold(cluster, "--af-n-workers=2", env={"AF_CPUS_PER_WORKER": 4})
    ) == shape(2, cpus=4)


def test_gpu_memory_chooses_the_class(cluster):
    job_script(cluster)
    big = shape_of(cluster, hold(cluster, "--af-n-workers=2", "--af-min-gpu-memory-gb=8"))
    assert big == shape(2, gpus="gpu:t4:1")
    pair = shape_of(cluster, hold(cluster, "--af-n-workers=1", "--af-gpus-per-worker=2"))
    # Two GPUs share the memory of the one worker; never MIG instances (case B09).
    assert pair == shape(1, gpus="gpu:t4:2", mem_gb=16)


@pytest.mark.parametrize(
    "options",
    [
        ["-p", "urgent", "--af-n-workers=2"],
        ["--af-n-workers=2", "-p", "urgent"],
        ["--af-n-workers=2", "--partition=urgent", "--af-cpus-per-worker=8"],
    ],
)
def test_the_persons_partition_is_kept_in_any_order(cluster, options):
    job_script(cluster)
    assert shape_of(cluster, hold(cluster, *options)) == shape(2, partition="urgent")


def test_the_persons_partition_is_kept_from_any_source(cluster):
    job_script(cluster)
    assert shape_of(
        cluster, hold(cluster, "--af-n-workers=2", env={"SBATCH_PARTITION": "urgent"})
    ) == shape(2, partition="urgent")
    job_script(cluster, "--af-n-workers=2", "-p urgent")
    assert shape_of(cluster, hold(cluster)) == shape(2, partition="urgent")
    job_script(cluster, "-p urgent", "--af-n-workers=2")
    assert shape_of(cluster, hold(cluster)) == shape(2, partition="urgent")


def test_other_options_of_the_person_are_kept(cluster):
    job_script(cluster)
    job = cluster.job(
        hold(
            cluster,
            "--af-n-workers=2",
            "-t",
            "17",
            "-J",
            "mine",
            "-N2",
            "-A",
            "phys",
            "--exclude=n3",
            "--comment=hello",
            "-o",
            "out-%j.txt",
        )
    )
    assert job["TimeLimit"] == "00:17:00"
    assert job["JobName"] == "mine"
    assert job["NumNodes"].startswith("2")  # "2-2" while it is pending
    assert job["ExcNodeList"] == "n3"
    assert job["Comment"] == "hello"
    assert job["Account"] == "phys"
    assert re.search(r"/out-\d+\.txt$", job["StdOut"])
    assert job["NumTasks"] == "2"
    on_n3 = cluster.job(hold(cluster, "--af-n-workers=2", "-w", "n3"))
    assert on_n3["ReqNodeList"] == "n3"


def test_workers_land_where_the_gpus_are(cluster):
    """Two nodes with two T4s each: four workers on two nodes, without -N."""
    job_script(cluster)
    jobid = int(
        cluster.run(
            "sbatch", "--parsable", "--af-n-workers=4", "--af-min-gpu-memory-gb=16", "job.sh"
        ).stdout
    )
    assert cluster.wait_state(jobid, "COMPLETED")["NodeList"] == "n[1-2]"


def test_explain_shows_the_request_that_is_made(cluster):
    job_script(cluster)
    done = cluster.run(
        "sbatch", "--parsable", "--hold", "--af-n-workers=2", "--af-expl", "-p", "urgent", "job.sh"
    )
    jobid = int(done.stdout)
    line = next(l for l in done.stderr.splitlines() if l.strip().startswith("sbatch "))
    assert "--ntasks=2" in line and "--partition=urgent" in line and line.endswith("job.sh")
    # The line that it prints is a native request for the same job.
    again = cluster.run(*line.split()[:1], "--parsable", "--hold", *line.split()[1:])
    assert request_of(cluster, int(again.stdout)) == request_of(cluster, jobid)


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_explain_in_srun_and_salloc_is_on_stderr(cluster, command):
    done = cluster.run(
        command,
        "--af-n-workers=2",
        "--af-explain",
        "sh",
        "-c",
        '[ "${SLURM_PROCID:-0}" = 0 ] && echo out || :',
    )
    assert done.stdout == "out\n"
    line = next(l for l in done.stderr.splitlines() if l.strip().startswith(command + " "))
    assert f"{command} --ntasks=2" in line
    assert line.endswith("sh -c '[ \"${SLURM_PROCID:-0}\" = 0 ] && echo out || :'")


def test_case_b51_the_job_id_alone_is_on_stdout(cluster):
    """With every option of the table, in every way to print it."""
    cluster.run("mkdir", "-p", "env/bin")
    job_script(cluster)
    for option in (
        "--af-max-workers=2",
        "--af-n-workers=2",
        "--af-min-gpu-memory-gb=8",
        "--af-gpus-per-worker=2",
        "--af-cpus-per-worker=2",
        "--af-ram-per-worker-gb=8",
        f"--af-env={cluster.cwd}/env",
        "--af-explain",
    ):
        assert hold(cluster, option)
    done = cluster.run("sbatch", "--hold", "--af-n-workers=2", "--af-explain", "job.sh")
    assert re.fullmatch(r"Submitted batch job \d+\n", done.stdout)
    quiet = cluster.run("sbatch", "-Q", "--hold", "--af-n-workers=2", "job.sh")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_test_only_submits_nothing(cluster):
    job_script(cluster)
    done = cluster.run("sbatch", "--test-only", "--af-n-workers=2", "job.sh")
    assert done.stdout == "" and "to start at" in done.stderr
    assert cluster.run("squeue", "-h", "--me").stdout == ""


def test_arrays_have_the_shape_in_each_task(cluster):
    job_script(cluster)
    jobid = hold(cluster, "--array=1-2", "--af-n-workers=2")
    assert shape_of(cluster, f"{jobid}_1") == shape(2)


def test_the_request_of_srun_reaches_its_tasks(cluster):
    done = cluster.run(
        "srun",
        "-l",
        "--af-n-workers=2",
        "--af-min-gpu-memory-gb=16",
        "sh",
        "-c",
        "echo $SLURM_PROCID $SLURM_NTASKS $SLURM_CPUS_PER_TASK $CUDA_VISIBLE_DEVICES",
    )
    assert sorted(done.stdout.splitlines()) == ["0: 0 2 8 0,1", "1: 1 2 8 0,1"]
    wait_for(lambda: cluster.run("squeue", "-h").stdout == "", what="an empty queue")
