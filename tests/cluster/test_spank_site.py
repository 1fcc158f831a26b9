# SPDX-License-Identifier: Apache-2.0
"""The plugin and the site: a broken or absent af.yaml, the switch, and a plugin that does not fit
this Slurm (case B52). Plain jobs never notice."""

import re

import pytest

from spank_commands import hold, refused, shape, shape_of

OTHER_VERSION = "/opt/af/build/tests/spank_af_other_version.so"


@pytest.fixture(scope="module")
def site_cluster(request):
    """A cluster whose site file the tests change, with the plugin as `optional`."""
    from conftest import new_name
    from sandbox import Sandbox

    sandbox = Sandbox(new_name(), site="/work/site.yaml", plugstack="optional")
    try:
        sandbox.up()
        sandbox.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
        yield sandbox
        sandbox.cancel_all()
    finally:
        sandbox.remove()


def site_file(cluster, text):
    cluster.write("/work/site.yaml", text)


def shipped(cluster):
    return (cluster.repo / "etc" / "af.yaml").read_text()


def plain_jobs_work(cluster, slurm_complains_of=None):
    """`slurm_complains_of`: a plugin that Slurm itself cannot load, and says so on stderr."""

    def silent(done):
        lines = [
            l
            for l in done.stderr.splitlines()
            if not slurm_complains_of or slurm_complains_of not in l
        ]
        assert lines == []

    done = cluster.run("sbatch", "--hold", "--parsable", "-n2", "job.sh")
    assert re.fullmatch(r"\d+\n", done.stdout)
    silent(done)
    for command in ("srun", "salloc"):
        done = cluster.run(command, "-Q", "-n1", "echo", "hello")
        assert done.stdout == "hello\n"
        silent(done)
    jobid = int(cluster.run("sbatch", "--parsable", "-n1", "job.sh").stdout)
    cluster.wait_state(jobid, "COMPLETED")


@pytest.mark.parametrize(
    "text,words",
    [
        ("gpus:\n  - name: t4\n    memory_gb: lots\n", ["/work/site.yaml:3", "memory_gb"]),
        ("enabled: yes\ngpus: [\n", ["/work/site.yaml:"]),
        (
            "gpus: [{name: t4, memory_gb: 16, max_per_node: 2, total: 4}]\nnonsense: 1\n",
            ["/work/site.yaml:2", "nonsense"],
        ),
    ],
)
def test_a_broken_site_file_stops_af_options_only(site_cluster, text, words):
    site_file(site_cluster, text)
    for command in (["sbatch"], ["srun"], ["salloc"]):
        done = site_cluster.run(
            *command, "--af-n-workers=1", "job.sh" if command == ["sbatch"] else "true", check=False
        )
        line = refused(done, *words)
        assert done.stderr.strip() == line.strip()
    refused(site_cluster.run("sbatch", "job.sh", env={"AF_N_WORKERS": 1}, check=False), *words)
    plain_jobs_work(site_cluster)


def test_an_absent_site_file(site_cluster):
    site_file(site_cluster, "")
    site_cluster.run("rm", "/work/site.yaml", root=True)
    refused(
        site_cluster.run("sbatch", "--af-n-workers=1", "job.sh", check=False), "/work/site.yaml"
    )
    plain_jobs_work(site_cluster)


def test_the_switch_at_submit(site_cluster):
    site_file(
        site_cluster,
        shipped(site_cluster)
        .replace("enabled: yes", "enabled: no")
        .replace('disabled_reason: ""', 'disabled_reason: "maintenance of the GPUs"'),
    )
    refused(
        site_cluster.run("sbatch", "--af-n-workers=1", "job.sh", check=False),
        "switched off",
        "maintenance of the GPUs",
    )
    plain_jobs_work(site_cluster)


def test_the_switch_at_start(site_cluster):
    """Nothing of ours happens on the node for a job that was submitted before."""
    site_file(site_cluster, shipped(site_cluster))
    site_cluster.write(
        "job2.sh", "#!/bin/bash\nenv | grep -E '^AF_(RUN_ID|SUPERVISED)' || echo off\n", 0o755
    )
    jobid = hold(site_cluster, "--af-n-workers=1", "-o", "switch.out", script="job2.sh")
    site_file(site_cluster, shipped(site_cluster).replace("enabled: yes", "enabled: no"))
    site_cluster.run("scontrol", "release", str(jobid))
    site_cluster.wait_state(jobid, "COMPLETED")
    assert site_cluster.read("switch.out") == "off\n"


def test_refusals_hold_with_an_optional_plugin(site_cluster):
    """Slurm ignores what an optional plugin's init_post_opt returns; we do not leave it at that."""
    site_file(site_cluster, shipped(site_cluster))
    refused(
        site_cluster.run("sbatch", "--af-n-workers=1", "--mem=1G", "job.sh", check=False), "--mem"
    )
    refused(site_cluster.run("sbatch", "--af-n-workers=99", "job.sh", check=False), "99")
    assert shape_of(site_cluster, hold(site_cluster, "--af-n-workers=2")) == shape(2)


def test_untyped_gres_with_a_feature(make_cluster):
    """As common as typed GRES: the class is chosen by a feature, combined with the person's."""
    cluster = make_cluster(
        shape="n1:gpu*2@t4,n2:gpu*2@t4+fast,n3:gpu*4@a100", site="/work/site.yaml"
    )
    cluster.write(
        "/work/site.yaml",
        """
gpus:
  - {name: t4, feature: t4, memory_gb: 16, max_per_node: 2, total: 4}
  - {name: a100, feature: a100, memory_gb: 40, max_per_node: 4, total: 4}
submit: {kept: {partition: kept}}
""",
    )
    cluster.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
    assert shape_of(
        cluster, hold(cluster, "--af-n-workers=2", "--af-min-gpu-memory-gb=20")
    ) == shape(2, features="a100")
    for options in (
        ["-C", "fast", "--af-n-workers=1", "--af-min-gpu-memory-gb=20"],
        ["--af-min-gpu-memory-gb=20", "--af-n-workers=1", "-C", "fast"],
    ):
        assert shape_of(cluster, hold(cluster, *options)) == shape(1, features="fast&a100")
    assert shape_of(cluster, hold(cluster, "-C", "fast", "--af-n-workers=1")) == shape(
        1, features="fast"
    )
    refused(cluster.run("sbatch", "--af-min-gpu-memory-gb=41", "job.sh", check=False), "40 GB")


def test_a_plugin_for_another_slurm(make_cluster):
    cluster = make_cluster(plugin=OTHER_VERSION, plugstack="optional")
    cluster.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
    plain_jobs_work(cluster, "spank_af_other_version.so")
    for command in ("sbatch", "srun", "salloc"):
        done = cluster.run(command, "--af-n-workers=1", "job.sh", check=False)
        assert done.returncode != 0 and done.stdout == ""
        assert "--af-n-workers" in done.stderr  # Slurm's words: it does not know the option


def test_a_plugin_that_is_not_there(make_cluster):
    cluster = make_cluster(plugin="/opt/af/build/lib/slurm/not_built.so", plugstack="optional")
    cluster.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
    plain_jobs_work(cluster, "not_built.so")
    done = cluster.run("sbatch", "--af-n-workers=1", "job.sh", check=False)
    assert done.returncode != 0 and "--af-n-workers" in done.stderr


def test_a_wrong_word_in_plugstack_conf(make_cluster):
    """Told to those who use af; plain commands go on."""
    cluster = make_cluster(site="/opt/af/etc/af.yaml confg=/etc/other.yaml")
    cluster.write("job.sh", "#!/bin/bash\nhostname\n", 0o755)
    plain_jobs_work(cluster)
    refused(
        cluster.run("sbatch", "--af-n-workers=1", "job.sh", check=False), "confg=/etc/other.yaml"
    )


@pytest.mark.parametrize("proctrack", ["linuxproc", "cgroup"])
def test_jobs_run_under_both_ways_to_track_processes(make_cluster, proctrack):
    cluster = make_cluster(proctrack=proctrack)
    jobid = cluster.sbatch(
        "echo $AF_RUN_ID $AF_SUPERVISED; srun -n1 echo step; exit 7", "--af-n-workers=1"
    )
    job = cluster.wait_state(jobid, "ENDED")
    assert cluster.read(f"slurm-{jobid}.out") == f"{jobid} 1\nstep\n"
    assert job["ExitCode"] == "7:0" and job["JobState"] == "FAILED"
