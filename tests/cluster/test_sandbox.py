# SPDX-License-Identifier: Apache-2.0
"""scripts/sandbox itself: life and death, isolation, users, GPUs, PMIx, preemption."""
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from conftest import new_name
from sandbox import (REPO, Sandbox, processes_in_pid_namespace, unless_open_mpi_crashed,
                     wait_for)

ROOT = os.geteuid() == 0


def has_cgroup_freezer():
    return any("freezer" in line.split(" - ")[1] and os.access(line.split()[4], os.W_OK)
               for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
               if " - cgroup " in line)


PROCTRACKS = [
    pytest.param("cgroup", marks=pytest.mark.skipif(
        not (ROOT and has_cgroup_freezer()), reason="no writable cgroup v1 freezer here")),
    "linuxproc",
]


def links():
    return sorted(os.listdir("/sys/class/net"))


def mounts():
    return pathlib.Path("/proc/self/mountinfo").read_text()


def cgroup_leftovers(name):
    return [path for path in pathlib.Path("/sys/fs/cgroup").glob(f"**/af-sandbox-{name}-*")]


def lock_is_free(sandbox):
    with open(sandbox.dir / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def tree_digest(*roots):
    """Names, modes and contents below some directories, and the names in /."""
    digest = hashlib.sha256(repr(sorted(os.listdir("/"))).encode())
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders.sort()
            for file in sorted(files):
                path = pathlib.Path(folder, file)
                digest.update(f"{path} {path.lstat().st_mode} {path.lstat().st_mtime_ns}".encode())
    return digest.hexdigest()


def copied_repo(folder, owner=None, mode=0o755):
    """A clone with only the scripts, for sandboxes of another user or in a closed folder."""
    clone = folder / "clone"
    shutil.copytree(REPO / "scripts", clone / "scripts")
    if owner is not None:
        for path in (clone, *clone.rglob("*")):
            os.chown(path, owner, owner)
    folder.chmod(mode)
    return clone


@pytest.mark.parametrize("proctrack", PROCTRACKS)
def test_kill_9_of_the_first_process_leaves_nothing(proctrack):
    sandbox = Sandbox(new_name(), proctrack=proctrack)
    links_before, mounts_before = links(), mounts()
    took = []
    try:
        for _ in range(3):
            start = time.monotonic()
            sandbox.up()
            took.append(time.monotonic() - start)
            # Something to leave behind: a job with a process that left its session.
            job = sandbox.sbatch("setsid sleep 1000 & srun -N2 -n2 sleep 1000", "-N2", "-n2")
            sandbox.wait_running(job)
            name = os.readlink(f"/proc/{sandbox.first_process()}/ns/pid")
            assert len(sandbox.processes()) > 8
            os.kill(sandbox.first_process(), signal.SIGKILL)
            # No wait before the next `up`: a process being killed must not look alive to it.
        wait_for(lambda: lock_is_free(sandbox), 10, "the lock is free")
        assert processes_in_pid_namespace(name) == []
        assert links() == links_before
        assert mounts() == mounts_before
        assert cgroup_leftovers(sandbox.name) == []
        assert sandbox.call("status", check=False).returncode == 3
        assert sorted(took)[1] < 2, took  # 0.4 s; the median, as other tests may share the machine
    finally:
        sandbox.remove()


@pytest.mark.skipif(not (ROOT and has_cgroup_freezer()), reason="no writable cgroup v1 freezer here")
def test_frozen_job_does_not_outlive_kill_9(make_cluster):
    sandbox = make_cluster(proctrack="cgroup")
    job = sandbox.sbatch("srun sh -c 'echo on; sleep 1000'")
    sandbox.wait_output(job, "^on$")
    top, = (path for path in cgroup_leftovers(sandbox.name) if (path / "slurm_n1" / "freezer.state").exists())
    (top / "slurm_n1" / "freezer.state").write_text("FROZEN")
    os.kill(sandbox.first_process(), signal.SIGKILL)  # which now waits for the frozen job
    sandbox.up()
    assert sandbox.run("srun", "-N3", "id", "-un").stdout.split() == ["ada"] * 3


def test_two_at_once_with_the_same_addresses(make_cluster):
    one, two = make_cluster(), make_cluster()
    addresses = [s.run("ip", "-br", "-4", "address", node="n1").stdout.split() for s in (one, two)]
    assert "10.99.0.10/24" in addresses[0] and "10.99.0.10/24" in addresses[1]
    for sandbox in (one, two):
        hosts = sandbox.run("srun", "-N3", "hostname").stdout.split()
        assert sorted(hosts) == ["n1", "n2", "n3"]
    os.kill(one.first_process(), signal.SIGKILL)
    wait_for(lambda: lock_is_free(one), 10, "the lock is free")
    assert two.run("srun", "-N3", "id", "-un").stdout.split() == ["ada"] * 3


def test_up_when_up_says_so_and_down_is_repeatable(make_cluster):
    sandbox = make_cluster()
    first = sandbox.first_process()
    again = sandbox.up()
    assert "already up" in again.stderr and sandbox.first_process() == first
    assert sandbox.call("status").returncode == 0
    sandbox.down()
    sandbox.down()
    assert sandbox.call("status", check=False).returncode == 3
    refused = sandbox.run("true", check=False)
    assert refused.returncode == 1 and "is not up" in refused.stderr


def test_files_survive_down(make_cluster):
    sandbox = make_cluster()
    sandbox.shell("echo kept > /work/users/ada/file; echo too > ~/file")
    sandbox.down()
    assert sandbox.read("/work/users/ada/file") == "kept\n"
    sandbox.up()
    assert sandbox.shell("cat /work/users/ada/file /home/ada/file").stdout == "kept\ntoo\n"


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing():
    sandbox = Sandbox(new_name(), slurm_conf=["SelectType=select/nonsense"])
    links_before, mounts_before = links(), mounts()
    try:
        failed = sandbox.call("up", *sandbox.options, check=False)
        assert failed.returncode == 1
        assert "did not come up" in failed.stderr and "select/nonsense" in failed.stderr
        wait_for(lambda: lock_is_free(sandbox), 10, "the lock is free")
        assert links() == links_before and mounts() == mounts_before
        assert cgroup_leftovers(sandbox.name) == []
    finally:
        sandbox.remove()


@pytest.mark.parametrize("words, says", [
    (["up", "--shape", "n1"], "NODE:GPUS"),
    (["up", "--shape", "n1:t4*2,n1:t4*2"], "is taken"),
    (["up", "--shape", "n1:t4*none"], "TYPE*COUNT"),
    (["up", "--proctrack", "pgid"], "cgroup or linuxproc"),
    (["up", "--nonsense"], "unknown option of up: --nonsense"),
    (["nonsense"], "unknown command 'nonsense'"),
])
def test_bad_command_lines_get_one_line(words, says):
    failed = Sandbox(new_name()).call(*words, check=False)
    assert failed.returncode != 0 and says in failed.stderr
    assert len(failed.stderr.splitlines()) == 1 and failed.stdout == ""


@pytest.mark.skipif(not ROOT, reason="needs root to become another user; the whole suite is rootless here")
def test_as_an_ordinary_user(tmp_path_factory):
    uid = 61234
    allowed = subprocess.run(["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups",
                              "unshare", "--user", "--map-current-user", "true"],
                             capture_output=True, text=True)
    if allowed.returncode != 0:
        pytest.skip(f"no user namespaces for ordinary users here: {allowed.stderr.strip()}")
    base = tmp_path_factory.mktemp("rootless")
    for folder in base.parents:
        if folder == pathlib.Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)  # pytest's folders are closed to others
    repo = copied_repo(base, owner=uid)
    sandbox = Sandbox("rootless", repo=repo, uid=uid)
    try:
        sandbox.up()
        assert sandbox.run("srun", "-N3", "id", "-un").stdout.split() == ["ada"] * 3
        seen = sandbox.run("srun", "--gres=gpu:1g.5gb:2", "printenv", "CUDA_VISIBLE_DEVICES").stdout
        assert seen.count("MIG-") == 2
        held = sandbox.run("srun", "grep", "CapEff", "/proc/self/status").stdout.split()[1]
        assert int(held, 16) == 0
    finally:
        sandbox.down()


@pytest.mark.skipif(not ROOT, reason="needs root: an ordinary user's job is that user here")
def test_a_clone_in_a_closed_folder(tmp_path):
    repo = copied_repo(tmp_path, mode=0o700)
    repo.chmod(0o700)  # as `git clone . $(mktemp -d)` makes it
    sandbox = Sandbox("closed", repo=repo)
    try:
        sandbox.up()
        done = sandbox.run("srun", "sh", "-c", "echo x > file && ls /opt/af/scripts/sandbox")
        assert done.stdout.strip() == "/opt/af/scripts/sandbox"
        assert sandbox.read("file") == "x\n"
        done = sandbox.run("touch", "/opt/af/scripts/written", root=True, check=False)
        assert "Read-only file system" in done.stderr
    finally:
        sandbox.down()


def test_the_machine_is_left_alone(make_cluster):
    before = tree_digest("/etc/slurm", "/etc/munge", "/var/spool/slurmd", "/var/spool/slurmctld")
    sandbox = make_cluster()
    sandbox.run("srun", "-N3", "true")
    sandbox.run("sh", "-c", "echo x > /etc/slurm/mine; echo x > /etc/af/mine; mkdir /run/mine", root=True)
    assert tree_digest("/etc/slurm", "/etc/munge", "/var/spool/slurmd", "/var/spool/slurmctld") == before
    assert not os.path.exists("/etc/af") and not os.path.exists("/run/mine")


def test_run_passes_everything_through(cluster):
    assert cluster.run("sh", "-c", "exit 7", check=False).returncode == 7
    assert cluster.run("cat", input="from stdin\n").stdout == "from stdin\n"
    words = ["a b", "", "$HOME", "*", "it's", '"', "\\", "--root"]
    assert cluster.run("printf", "%s\\n", *words).stdout.split("\n")[:-1] == words
    done = cluster.shell("echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    env = cluster.run("env", env={"AF_MAX_WORKERS": "3", "OTHER": "x y"}).stdout.splitlines()
    assert {"HOME=/home/ada", "USER=ada", "AF_MAX_WORKERS=3", "OTHER=x y"} <= set(env)
    assert not any(line.startswith(("PYTEST_", "SUDO_")) for line in env)
    assert cluster.run("id", "-u", root=True, cwd="/").stdout.strip() == ("0" if ROOT else str(os.getuid()))
    assert cluster.run("true", node="n9", check=False).stderr.startswith("sandbox: no node 'n9'")


def test_killing_run_ends_its_command(cluster):
    process = cluster.popen("sh", "-c", "echo started; exec sleep 4321")
    assert process.stdout.readline() == "started\n"
    process.kill()
    process.wait()
    wait_for(lambda: "sleep 4321" not in cluster.run("ps", "-eo", "args").stdout, 5, "sleep is gone")


def test_nodes_look_like_machines_of_their_own(cluster):
    script = ("echo $(hostname) $(getent hosts $(hostname) | cut -d' ' -f1) $(cat /etc/hostname);"
              "echo mine > /tmp/$(hostname); ls /tmp /var/tmp /dev/shm /home")
    for node, address in (("n1", "10.99.0.10"), ("n3", "10.99.0.12")):
        out = cluster.shell(script, node=node).stdout
        assert out.splitlines()[0] == f"{node} {address} {node}"
        assert "ada" not in out and out.count("\n") == 9
    assert cluster.run("ls", "/home").stdout == "ada\n"
    assert cluster.run("ls", "/tmp").stdout == ""
    assert cluster.run("touch", "/opt/af/x", root=True, check=False).returncode != 0


def test_jobs_run_as_ada_in_the_default_partition(cluster):
    job = cluster.sbatch("id -un; pwd; hostname; echo $SLURM_JOB_PARTITION")
    cluster.wait_ended(job)
    assert cluster.output(job).split() == ["ada", cluster.cwd, "n1", "kept"]


def test_gpus_are_seen_and_described(cluster):
    t4 = cluster.run("srun", "--gres=gpu:t4:2", "sh", "-c", "hostname; echo $CUDA_VISIBLE_DEVICES")
    assert t4.stdout.split() == ["n1", "0,1"]
    mig = cluster.run("srun", "--gres=gpu:1g.5gb:4", "sh", "-c",
                      "echo $CUDA_VISIBLE_DEVICES; cat /etc/af/fake-gpus.json").stdout
    visible, _, inventory = mig.partition("\n")
    gpus = json.loads(inventory)
    assert visible.split(",") == [gpu["uuid"] for gpu in gpus]
    assert [gpu["type"] for gpu in gpus] == ["1g.5gb"] * 4
    assert [gpu["memory_gb"] for gpu in gpus] == [5] * 4
    parents = [gpu["parent_uuid"] for gpu in gpus]
    assert parents[0] == parents[1] != parents[2] == parents[3]


MPI_PROGRAM = r"""
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
  int rank, size, sum, length;
  char host[MPI_MAX_PROCESSOR_NAME];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Get_processor_name(host, &length);
  printf("%s %d %d\n", host, size, sum);
  return MPI_Finalize();
}
"""


def test_pmix_over_two_nodes(cluster):
    cluster.write("hello.c", MPI_PROGRAM)
    cluster.run("mpicc", "-o", "hello", "hello.c", env={"TMPDIR": "/tmp"})
    done = unless_open_mpi_crashed(
        lambda: cluster.run("srun", "--mpi=pmix", "-N2", "-n4", "--ntasks-per-node=2", "./hello",
                            check=False), lambda done: done.stderr)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["n1 4 6", "n1 4 6", "n2 4 6", "n2 4 6"]


# A step that ends when told gives its GPU back at once; the batch shell is told nothing.
VICTIM = """srun sh -c 'trap "echo told; exit 0" TERM; echo on; while :; do sleep 0.1; done'"""


@pytest.mark.parametrize("proctrack", PROCTRACKS)
def test_urgent_takes_gpus_from_spare(make_cluster, proctrack):
    cluster = make_cluster(proctrack=proctrack)
    assert f"proctrack/{proctrack}" in cluster.run("scontrol", "show", "config").stdout
    victim = cluster.sbatch(VICTIM, "-p", "spare", "--gres=gpu:1g.5gb:4", name="victim.sh")
    cluster.wait_output(victim, "^on$")
    urgent = cluster.sbatch("echo here", "-p", "urgent", "--gres=gpu:1g.5gb:1", name="urgent.sh")
    cluster.wait_output(victim, "^told$")
    cluster.wait_ended(urgent)
    assert cluster.output(urgent) == "here\n"


def test_preempted_job_that_stays_is_requeued(cluster):
    script = VICTIM.replace("exit 0", "true")
    victim = cluster.sbatch(script, "-p", "spare", "--gres=gpu:1g.5gb:4", "--requeue", name="victim.sh")
    cluster.wait_output(victim, "^on$")
    urgent = cluster.sbatch("echo here", "-p", "urgent", "--gres=gpu:1g.5gb:1", name="urgent.sh")
    cluster.wait_output(victim, "^told$")
    cluster.wait_ended(urgent)
    wait_for(lambda: cluster.job(victim)["Restarts"] == "1", 30, "the victim is requeued")


def test_kept_is_not_preempted(cluster):
    keeper = cluster.sbatch(VICTIM, "-p", "kept", "--gres=gpu:1g.5gb:4", name="keeper.sh")
    cluster.wait_output(keeper, "^on$")
    urgent = cluster.sbatch("true", "-p", "urgent", "--gres=gpu:1g.5gb:1", name="urgent.sh")
    wait_for(lambda: cluster.job(urgent).get("Reason") in ("Resources", "Priority"), 30, "urgent waits")
    assert cluster.state(keeper) == "RUNNING" and "told" not in cluster.output(keeper)


@pytest.mark.parametrize("proctrack", PROCTRACKS)
def test_job_processes_end_with_the_job(make_cluster, proctrack):
    cluster = make_cluster(proctrack=proctrack)
    job = cluster.sbatch("srun sh -c 'setsid sleep 1234 & echo on; cat /proc/self/cgroup; wait'")
    cluster.wait_output(job, "^on$")
    if proctrack == "cgroup":
        cluster.wait_output(job, "freezer:/slurm_n1/.*step_0")  # the top is the sandbox's own
    cluster.run("scancel", str(job))
    cluster.wait_ended(job)
    wait_for(lambda: "sleep 1234" not in cluster.run("ps", "-eo", "args").stdout, 20, "sleep is gone")


def test_untyped_gpus_with_a_feature_and_padded_names(make_cluster):
    cluster = make_cluster(shape="hammer-f000:gpu*1@t4,hammer-f001:gpu*1@t4,n-x01:-@cpu+big")
    out = cluster.run("srun", "-N2", "-C", "t4", "--gres=gpu:1", "sh", "-c",
                      "echo $(hostname):$CUDA_VISIBLE_DEVICES").stdout
    assert sorted(out.split()) == ["hammer-f000:0", "hammer-f001:0"]
    assert cluster.run("srun", "-C", "big", "hostname").stdout == "n-x01\n"
    shown = cluster.run("sinfo", "-h", "-N", "-p", "kept", "-o", "%N %G %f").stdout.splitlines()
    assert shown[0] == "hammer-f000 gpu:1 t4" and shown[2] == "n-x01 (null) cpu,big"


def test_mixed_node(make_cluster):
    cluster = make_cluster(shape="m1:t4*1+1g.5gb*2")
    assert "gpu:t4:1" in cluster.run("sinfo", "-h", "-p", "kept", "-o", "%G").stdout
    t4 = cluster.run("srun", "--gres=gpu:t4:1", "printenv", "CUDA_VISIBLE_DEVICES").stdout
    mig = cluster.run("srun", "--gres=gpu:1g.5gb:2", "printenv", "CUDA_VISIBLE_DEVICES").stdout
    assert t4 == "0\n" and mig.count("MIG-") == 2


def test_a_slurm_conf_line_replaces_the_default(make_cluster):
    cluster = make_cluster(slurm_conf=["KillWait=7", "PartitionName=spare Nodes=ALL PriorityTier=1 GraceTime=9"])
    done = cluster.run("scontrol", "show", "config")
    assert "KillWait                = 7 sec" in done.stdout and done.stderr == ""
    assert "GraceTime=9" in cluster.run("scontrol", "show", "partition", "spare").stdout


@pytest.mark.skipif(not (ROOT and has_cgroup_freezer()), reason="no writable cgroup v1 memory hierarchy here")
def test_cgroup_limits_can_be_switched_on(make_cluster):
    cluster = make_cluster(slurm_conf=["TaskPlugin=task/cgroup"],
                           cgroup_conf=["ConstrainRAMSpace=yes", "ConstrainDevices=yes"])
    hog = ["srun", "--gres=gpu:t4:1", "--mem=100", "/usr/bin/python3", "-c", "print(len(bytearray(300 << 20)))"]
    killed = cluster.run(*hog, check=False)
    assert killed.returncode != 0 and "Out Of Memory" in killed.stderr
    assert cluster.run(*hog[:2], "--mem=1000", *hog[3:]).stdout == f"{300 << 20}\n"
