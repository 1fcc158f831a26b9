# SPDX-License-Identifier: Apache-2.0
"""What a worker finds out about its GPUs and how it starts MPI, in real steps (case B12)."""
import json
import re

from launch_helpers import LAUNCH


def plan(cluster, *options, env="", launch=""):
    """Output of af-launch --dry-run in a step with these options."""
    return cluster.shell(f"srun --mem=1000 {' '.join(options)} env {env} {LAUNCH} --bootstrap tcp "
                         f"--dry-run {launch} true 2>&1", check=False).stdout


def test_a_job_that_can_see_all_gpus_uses_its_own(cluster):
    """No ConstrainDevices and no CUDA_VISIBLE_DEVICES: the driver shows both, one is the job's."""
    text = plan(cluster, "-n1", "-w", "n1", "--gres=gpu:t4:1", env="-u CUDA_VISIBLE_DEVICES")
    assert re.search(r"can see all 2 GPUs of the node, Slurm gave it 1", text), text


def test_more_gpus_named_than_given_is_cut_down_and_said(cluster):
    text = plan(cluster, "-n1", "-w", "n1", "--gres=gpu:t4:1", env="CUDA_VISIBLE_DEVICES=0,1")
    assert re.search(r"CUDA_VISIBLE_DEVICES names .*, Slurm gave .*: using .* only", text), text


def test_fewer_gpus_than_tasks_is_one_clear_line(cluster):
    text = plan(cluster, "-N1", "-n2", "-w", "n1", "--gres=gpu:t4:1")
    assert "warning: n1 has fewer GPUs than its 2 workers need" in text, text


def test_without_a_pmi_server_mpi_says_what_to_do(cluster):
    done = cluster.shell(f"srun --mem=1000 -n2 --mpi=none {LAUNCH} --bootstrap mpi true",
                         check=False)
    assert done.returncode != 0
    assert "srun --mpi=pmix" in done.stderr, done.stderr
    assert done.stdout == ""


def test_a_world_of_another_size_is_an_error_in_words(cluster):
    """A PMI mismatch makes N worlds of one: here Slurm's number is changed instead of PMI's."""
    done = cluster.shell("srun --mem=1000 -n2 --mpi=pmix env SLURM_NTASKS=3 SLURM_NPROCS=3 "
                         f"SLURM_STEP_NUM_TASKS=3 {LAUNCH} --bootstrap mpi true", check=False)
    assert done.returncode != 0
    assert re.search(r"MPI says this is rank \d of 2, Slurm says task \d of 3", done.stderr), \
        done.stderr
    assert "--mpi=pmix" in done.stderr and done.stdout == ""


def test_fake_inventory_is_what_slurm_exports(cluster):
    """The sandbox's file of fake GPUs and the UUIDs that Slurm gives to jobs are the same."""
    for node, count in (("n1", 2), ("n3", 4)):
        listed = json.loads(cluster.run("cat", "/etc/af/fake-gpus.json", node=node).stdout)
        assert len(listed) == count
    given = cluster.run("srun", "-w", "n3", f"--gres=gpu:{count}", "--mem=1000", "printenv",
                        "CUDA_VISIBLE_DEVICES").stdout.strip()
    assert given.split(",") == [gpu["uuid"] for gpu in listed]
