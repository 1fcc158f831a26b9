# SPDX-License-Identifier: Apache-2.0
"""Case B43: an environment of the person's own is activated by path, in the script and in every rank."""


def make_environment(cluster, prefix):
    """What a conda or Pixi environment looks like from outside; nobody may write in it."""
    cluster.write(f"{prefix}/conda-meta/history", "")
    cluster.write(f"{prefix}/bin/tool", "#!/bin/sh\necho tool of the environment\n", mode=0o755)
    cluster.write(f"{prefix}/etc/conda/activate.d/data.sh", 'export TOOL_DATA="$CONDA_PREFIX/share"\n')
    cluster.run("chmod", "-R", "a-w", prefix)


def test_environment_reaches_the_script_and_every_rank(cluster):
    prefix = f"{cluster.cwd}/environment"
    make_environment(cluster, prefix)
    jobid = cluster.sbatch(
        "tool\naf-launch sh -c 'echo $(tool) $CONDA_PREFIX $TOOL_DATA on $(hostname)'",
        "-N2", "--af-n-workers=2", f"--af-env={prefix}")
    assert cluster.wait_ended(jobid)["JobState"] == "COMPLETED"
    lines = cluster.output(jobid).splitlines()
    assert lines[0] == "tool of the environment"
    said = f"tool of the environment {prefix} {prefix}/share on"
    assert {line for line in lines if said in line} == {f"[{i}] {said} n{i + 1}" for i in range(2)}


def test_missing_environment_is_refused_at_submit(cluster):
    done = cluster.sbatch("true", "--af-n-workers=1", "--af-env=/work/users/ada/nowhere", check=False)
    assert done.returncode != 0 and done.stdout == ""
    assert "/work/users/ada/nowhere" in done.stderr
    assert not cluster.run("squeue", "-h").stdout.strip()
