# SPDX-License-Identifier: Apache-2.0
"""Every bad input gets one clear line on stderr and a non-zero exit, and submits nothing."""

import pytest

from spank_commands import hold, refused, run_many, shape, shape_of

COMMANDS = ["sbatch", "srun", "salloc"]
LARGE = "--af-min-gpu-memory-gb=16"

# Options, words that the one line must have.
BAD_OPTIONS = [
    (["--af-n-workers=two"], ["--af-n-workers=two", "whole number"]),
    (["--af-n-workers=0"], ["--af-n-workers=0"]),
    (["--af-n-workers=-1"], ["--af-n-workers=-1"]),
    (["--af-n-workers=1.5"], ["--af-n-workers=1.5"]),
    (["--af-n-workers="], ["--af-n-workers"]),
    (["--af-n-workers=99999999999999999999"], ["--af-n-workers"]),
    (["--af-max-workers=4x"], ["--af-max-workers=4x"]),
    (["--af-cpus-per-worker=17"], ["--af-cpus-per-worker=17", "16"]),
    (["--af-ram-per-worker-gb=3"], ["--af-ram-per-worker-gb=3", "4", "64"]),
    (["--af-gpus-per-worker=3"], ["--af-gpus-per-worker=3"]),
    (["--af-min-gpu-memory-gb=40"], ["no GPU here has 40 GB", "16 GB"]),
    (["--af-n-workers=9"], ["--af-n-workers=9", "8"]),
    (["--af-n-workers=5", LARGE], ["--af-n-workers=5", "4"]),
    (["--af-n-workers=3", "--af-gpus-per-worker=2"], ["--af-n-workers=3", "2"]),
    (["--af-n-workers=2", "--af-max-workers=2"], ["--af-max-workers", "--af-n-workers", "exclude"]),
    (["--af-max-w=2", "--af-n=2"], ["--af-max-workers", "--af-n-workers", "exclude"]),
]

# Native options that ask for what af asks for, and the setting that the line must name.
CONTRADICTIONS = [
    ("--gres=gpu:1", "--af-max-workers"),
    ("--gpus=2", "--af-max-workers"),
    ("-G2", "--af-max-workers"),
    ("--gpus-per-node=1", "--af-max-workers"),
    ("--gpus-per-task=1", "--af-max-workers"),
    ("--ntasks=3", "--af-n-workers"),
    ("-n3", "--af-n-workers"),
    ("--ntasks-per-node=1", "--af-n-workers"),
    ("--cpus-per-task=2", "--af-cpus-per-worker"),
    ("-c2", "--af-cpus-per-worker"),
    ("--cpus-per-gpu=2", "--af-cpus-per-worker"),
    ("--mem=4G", "--af-ram-per-worker-gb"),
    ("--mem-per-cpu=1G", "--af-ram-per-worker-gb"),
    ("--mem-per-gpu=1G", "--af-ram-per-worker-gb"),
]


def command_line(cluster, command, options):
    if command == "sbatch":
        cluster.write("job.sh", "#!/bin/bash\nhostname\n", mode=0o755)
        return [command, *options, "job.sh"]
    return [command, *options, "true"]


def check_refusal(done, command, *words):
    line = refused(done, *words)
    # The one line is all: nothing of Slurm's on top of it.
    assert done.stderr.strip() == line.strip(), done.stderr
    assert line.startswith(f"{command}: error: af: ")


def refuse(cluster, command, options, *words, env=None):
    done = cluster.run(*command_line(cluster, command, options), env=env, check=False)
    check_refusal(done, command, *words)
    assert cluster.run("squeue", "-h", "--me").stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_values(cluster, command):
    lines = [command_line(cluster, command, options) for options, _ in BAD_OPTIONS]
    for done, (_, words) in zip(run_many(cluster, lines), BAD_OPTIONS, strict=True):
        check_refusal(done, command, *words)
    assert cluster.run("squeue", "-h", "--me").stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("native_first", [True, False])
def test_contradictions_in_any_order(cluster, command, native_first):
    ours = "--af-n-workers=2"
    lines = [
        command_line(cluster, command, [native, ours] if native_first else [ours, native])
        for native, _ in CONTRADICTIONS
    ]
    for done, (native, setting) in zip(run_many(cluster, lines), CONTRADICTIONS, strict=True):
        name = native.split("=")[0] if native.startswith("--") else "--"
        check_refusal(done, command, name, setting, "contradicts")
    assert cluster.run("squeue", "-h", "--me").stdout == ""


def test_contradictions_from_variables_and_script(cluster):
    refuse(cluster, "sbatch", ["--af-n-workers=2"], "--mem", env={"SBATCH_MEM_PER_NODE": "4G"})
    cluster.write(
        "script.sh", "#!/bin/bash\n#SBATCH --gres=gpu:1\n#SBATCH --af-n-workers=2\n", 0o755
    )
    refused(cluster.run("sbatch", "script.sh", check=False), "--gres")


def test_a_class_that_the_nodes_or_the_partition_do_not_have(cluster):
    refuse(cluster, "sbatch", ["--af-n-workers=2", "-N3"], "--nodes=3")
    refuse(cluster, "sbatch", ["--af-n-workers=8", "-N1"], "--nodes=1")


def test_case_b09_a_model_on_two_gpus_never_on_mig_instances(cluster, make_cluster):
    mig_only = make_cluster(shape="n1:1g.5gb*4")
    mig_only.write(
        "/work/site.yaml",
        """
gpus:
  - {name: 1g.5gb, gres_type: 1g.5gb, memory_gb: 5, mig: yes, instances_per_card: 2,
     max_per_node: 4, total: 4}
""",
    )
    mig_only.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
    # The site of the sandbox has T4s: chosen.
    done = cluster.run(
        *command_line(cluster, "sbatch", ["--parsable", "--hold", "--af-gpus-per-worker=2"])
    )
    assert shape_of(cluster, int(done.stdout))["TresPerTask"] == "gres:gpu:t4:2"
    # Only slices: refused in words.
    mig_only.down()
    mig_only.options += ["--site", "/work/site.yaml"]
    mig_only.up()
    refused(mig_only.run("sbatch", "--af-gpus-per-worker=2", "job.sh", check=False), "MIG")


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_variables_are_named(cluster, command):
    refuse(cluster, command, [], "AF_N_WORKERS=lots", env={"AF_N_WORKERS": "lots"})
    refuse(
        cluster,
        command,
        [],
        "AF_N_WORKERS",
        "AF_MAX_WORKERS",
        env={"AF_N_WORKERS": 2, "AF_MAX_WORKERS": 2},
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelled_option_gets_the_nearest_name(cluster, command):
    right = {
        "--af-n-wokers=2": "--af-n-workers",
        "--af-maxworkers=2": "--af-max-workers",
        "--af-explian": "--af-explain",
    }
    lines = [command_line(cluster, command, [wrong]) for wrong in right]
    for done, (wrong, name) in zip(run_many(cluster, lines), right.items(), strict=True):
        refused(done, wrong.split("=")[0], f"did you mean {name}")
    assert cluster.run("squeue", "-h", "--me").stdout == ""


def test_a_misspelled_option_in_the_script(cluster):
    cluster.write("job.sh", "#!/bin/bash\n#SBATCH --af-n-wokers=2\nhostname\n", 0o755)
    refused(
        cluster.run("sbatch", "job.sh", check=False), "--af-n-wokers", "did you mean --af-n-workers"
    )


def test_other_failures_are_not_called_misspellings(cluster):
    """A command that fails for its own reasons, with an --af- word that belongs to the program."""
    done = cluster.run("srun", "--mem=nonsense", "prog", "--af-of-the-program", check=False)
    assert done.returncode != 0 and "af: " not in done.stderr, done.stderr
    done = cluster.run("srun", "-n1", "sh", "-c", "exit 3", "--af-of-the-program", check=False)
    assert done.returncode == 3 and "af: " not in done.stderr, done.stderr


@pytest.mark.parametrize("command", ["sbatch", "salloc"])
@pytest.mark.parametrize(
    "components", [["--af-n-workers=2", ":", "-n1"], ["-n1", ":", "--af-n-workers=2"]]
)
def test_heterogeneous_jobs(cluster, command, components):
    refuse(cluster, command, components, "heterogeneous")


def test_heterogeneous_srun_and_script(cluster):
    done = cluster.run("srun", "--af-n-workers=1", "true", ":", "-n1", "true", check=False)
    refused(done, "heterogeneous")
    cluster.write(
        "het.sh",
        "#!/bin/bash\n#SBATCH --af-n-workers=1\n#SBATCH hetjob\n#SBATCH -n1\ntrue\n",
        0o755,
    )
    refused(cluster.run("sbatch", "het.sh", check=False), "heterogeneous")


def test_case_b43_a_missing_environment(cluster):
    for command in COMMANDS:
        refuse(
            cluster,
            command,
            ["--af-n-workers=1", f"--af-env={cluster.cwd}/nothing"],
            "--af-env",
            f"{cluster.cwd}/nothing",
        )
    cluster.run("mkdir", "-p", "/work/users/ada/notenv")
    refuse(cluster, "sbatch", ["--af-n-workers=1", "--af-env=/work/users/ada/notenv"], "bin")
    cluster.run("mkdir", "-p", "/home/ada/env/bin")
    refuse(
        cluster, "sbatch", ["--af-n-workers=1", "--af-env=/home/ada/env"], "/home/ada/env", "/work"
    )


def test_case_b31_output_that_the_job_cannot_write(cluster):
    # Not on the nodes: the line names path and storage.
    cluster.run("mkdir", "-p", "/home/ada/results")
    refuse(
        cluster,
        "sbatch",
        ["--af-n-workers=1", "--output=/home/ada/results/%j.out"],
        "/home/ada/results",
        "/work",
    )
    refuse(cluster, "sbatch", ["--af-n-workers=1", "--error=/home/ada/results/%j.out"], "--error")
    refuse(
        cluster, "sbatch", ["--af-n-workers=1", "--chdir=/home/ada/results"], "/home/ada/results"
    )
    # Not there at all, and not the person's to write.
    refuse(
        cluster,
        "sbatch",
        ["--af-n-workers=1", f"--output={cluster.cwd}/no/out"],
        f"{cluster.cwd}/no",
    )
    cluster.run("mkdir", "-p", "/work/closed", root=True)
    cluster.run("chmod", "0555", "/work/closed", root=True)
    refuse(cluster, "sbatch", ["--af-n-workers=1", "--output=/work/closed/out"], "/work/closed")
    # From a directory that jobs do not see, with nothing said: output would go there.
    cluster.write("job.sh", "#!/bin/bash\nhostname\n", mode=0o755)
    refused(
        cluster.run(
            "sbatch", "--af-n-workers=1", f"{cluster.cwd}/job.sh", cwd="/home/ada", check=False
        ),
        "/home/ada",
    )
    # And plain jobs are Slurm's affair.
    assert hold(cluster, "--output=/home/ada/results/out")


def test_case_b38_ignored_lines_are_pointed_out(cluster):
    cluster.write("job.sh", "#!/bin/bash\nset -e\n#SBATCH --af-n-workers=4\nhostname\n", 0o755)
    done = cluster.run("sbatch", "--hold", "--parsable", "job.sh")
    assert done.stdout.strip().isdigit()
    assert "line 3" in done.stderr and "--af-n-workers=4" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    cluster.write("job.sh", "#!/bin/bash\n  #SBATCH --af-n-workers=4\nhostname\n", 0o755)
    assert "line 2" in cluster.run("sbatch", "--hold", "job.sh").stderr
    # Found as sbatch finds it, with options around it, and with --quiet too.
    cluster.run("mkdir", "sub")
    cluster.write("sub/job.sh", "#!/bin/bash\ntrue\n#SBATCH --af-max-workers=4\n", 0o755)
    done = cluster.run(
        "sbatch", "-Q", "--hold", "-n", "1", "-D", f"{cluster.cwd}/sub", "job.sh", "arg"
    )
    assert "line 3" in done.stderr and "--af-max-workers=4" in done.stderr
    # Nothing to say of a script that is right, or whose here-document is another script.
    cluster.write(
        "job.sh",
        "#!/bin/bash\n#SBATCH --af-n-workers=2\ncat <<X\n#SBATCH --af-n-workers=4\nX\n",
        0o755,
    )
    assert cluster.run("sbatch", "--hold", "job.sh").stderr == ""


def test_site_conflicts_are_refused(cluster, make_cluster):
    site = make_cluster(site="/work/site.yaml")
    site.write(
        "/work/site.yaml",
        (site.repo / "etc/af.yaml").read_text().replace("refuse: []", "refuse: [exclusive]"),
    )
    site.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
    refused(
        site.run("sbatch", "--af-n-workers=1", "--exclusive", "job.sh", check=False), "--exclusive"
    )
    assert site.run("sbatch", "--hold", "--exclusive", "job.sh").returncode == 0
    assert shape_of(site, hold(site, "--af-n-workers=1")) == shape(1)
