# SPDX-License-Identifier: Apache-2.0
"""What a rank finds when it starts: ranks, devices, environment, arguments, ports."""
import json
import re
import socket

import pytest

from conftest import wait_for
from launch_helpers import LAUNCH, PYTHON, SHOW, facts
from sandbox import unless_open_mpi_crashed

ALLREDUCE = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size(), flush=True)
"""


def run_show(cluster, ranks, *srun, launch=(), program=(), **kwargs):
    cluster.write("show.py", SHOW)
    done = cluster.run("srun", *srun, LAUNCH, *launch, PYTHON, "show.py", *program, **kwargs)
    return done, [facts(cluster, rank) for rank in range(ranks)]


def check_agreement(seen, nodes, name):
    """Case B06: whatever a framework looks at says the same."""
    world = len(seen)
    for rank, fact in enumerate(seen):
        env = fact["env"]
        assert env["RANK"] == env["SLURM_PROCID"] == env["ROLE_RANK"] == str(rank)
        for key in ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS",
                    "ROLE_WORLD_SIZE"):
            assert env[key] == str(world), key
        assert env["LOCAL_RANK"] == env["SLURM_LOCALID"]
        assert env["LOCAL_WORLD_SIZE"] == env["SLURM_NTASKS_PER_NODE"] == str(world // nodes)
        assert env["GROUP_RANK"] == env["SLURM_NODEID"]
        assert env["GROUP_WORLD_SIZE"] == env["SLURM_NNODES"] == str(nodes)
        assert env["AF_LOCAL_RANK"] == str(rank % (world // nodes))
        assert env["SLURM_JOB_NAME"] not in ("bash", "interactive"), name
        config = json.loads(env["TF_CONFIG"])
        assert config["task"] == {"type": "worker", "index": rank}
        assert len(config["cluster"]["worker"]) == world
        assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert env["PYTHONUNBUFFERED"] == "1"
    assert len({(f["env"]["MASTER_ADDR"], f["env"]["MASTER_PORT"]) for f in seen}) == 1


@pytest.mark.parametrize("name", ["interactive", "bash", "train"])
def test_names_of_ranks_agree(cluster, name):
    _, seen = run_show(cluster, 4, "-J", name, "-N2", "-n4", "--ntasks-per-node=2", "--mem=1000")
    check_agreement(seen, 2, name)


@pytest.mark.parametrize("bootstrap", ["tcp", "mpi"])
def test_both_bootstraps_in_a_batch_script(cluster, bootstrap):
    cluster.write("show.py", SHOW)

    def attempt():
        jobid = cluster.sbatch(f"{LAUNCH} -v --bootstrap={bootstrap} {PYTHON} show.py", "-N2", "-n4",
                               "--ntasks-per-node=2", "--mem=1000")
        return jobid, cluster.wait_ended(jobid)

    jobid, job = unless_open_mpi_crashed(attempt, lambda result: cluster.output(result[0]))
    assert job["ExitCode"] == "0:0", cluster.output(jobid)
    assert f"bootstrap {bootstrap}" in cluster.output(jobid)
    check_agreement([facts(cluster, rank) for rank in range(4)], 2, "job")


@pytest.mark.parametrize("how", [[], ["--mpi=pmix"]], ids=["none", "pmix"])
def test_no_mpi_variable_reaches_a_rank(cluster, how):
    """Case B50: a rank that calls MPI_Init must not take itself for a task of our world."""
    _, seen = run_show(cluster, 2, *how, "-n2", "--mem=1000",
                       env={"OMPI_MCA_btl": "self,tcp", "PMI_RANK": "3"})
    for fact in seen:
        foreign = [key for key in fact["env"] if re.match("(PMIX?|OMPI|PRTE|PMI2)_", key)]
        assert foreign == []
        assert not [key for key in fact["env"] if key.startswith("SLURM_CPU_BIND")]


def test_arguments_arrive_as_they_were_typed(cluster):
    """Case B38."""
    odd = ["a b", "", "*", "$X", "\n", "--", '"q"', "--workers", "'", "\\", "ä", "-n9"]
    cluster.write("show.py", SHOW)
    cluster.run("srun", "-n2", "--mem=1000", LAUNCH, PYTHON, "show.py", *odd)
    assert [facts(cluster, rank)["argv"] for rank in range(2)] == [odd, odd]
    # Through a batch script there is one more srun on the way.
    cluster.run("rm", "rank-0.json", "rank-1.json")
    cluster.run("salloc", "-n2", "--mem=1000", LAUNCH, PYTHON, "show.py", *odd)
    assert [facts(cluster, rank)["argv"] for rank in range(2)] == [odd, odd]


def test_device_of_local_rank_is_valid_on_whole_gpus(cluster):
    """Case B07: set_device(LOCAL_RANK) of every rank is a GPU of its own that it sees."""
    for option in (["--gres=gpu:t4:2"], ["--gpus-per-task=t4:1", "--gpu-bind=closest"]):
        _, seen = run_show(cluster, 4, "-N2", "-n4", "--ntasks-per-node=2", "--mem=1000", *option)
        used = set()
        for fact in seen:
            visible = fact["env"]["CUDA_VISIBLE_DEVICES"].split(",")
            used.add((fact["env"]["SLURM_NODEID"], visible[int(fact["env"]["LOCAL_RANK"])]))
        assert len(used) == 4, option


def test_device_of_local_rank_is_valid_with_per_task_binding(cluster):
    _, seen = run_show(cluster, 2, "-N1", "-n2", "--mem=1000", "--gpus-per-task=t4:1",
                       "--gpu-bind=single:1")
    devices = [fact["env"]["CUDA_VISIBLE_DEVICES"].split(",")[int(fact["env"]["LOCAL_RANK"])]
               for fact in seen]
    assert sorted(devices) == ["0", "1"]


def test_a_mig_rank_sees_one_instance_as_device_0(cluster):
    _, seen = run_show(cluster, 4, "-N1", "-n4", "--mem=1000", "--gres=gpu:1g.5gb:4")
    assert {fact["env"]["LOCAL_RANK"] for fact in seen} == {"0"}
    assert [fact["env"]["AF_LOCAL_RANK"] for fact in seen] == ["0", "1", "2", "3"]
    visible = [fact["env"]["CUDA_VISIBLE_DEVICES"] for fact in seen]
    assert len(set(visible)) == 4 and all(v.startswith("MIG-") and "," not in v for v in visible)
    assert {fact["env"]["AF_GPU_MEMORY_GB"] for fact in seen} == {"5"}


def test_allocated_gpus_are_what_a_rank_sees(cluster):
    """Case B12: one of the node's two GPUs is the job's, and no other is visible."""
    _, seen = run_show(cluster, 1, "-n1", "--mem=1000", "--gres=gpu:t4:1")
    assert len(seen[0]["env"]["CUDA_VISIBLE_DEVICES"].split(",")) == 1


def test_untyped_gres(make_cluster):
    """Case B12 again: a site whose GRES has no type."""
    cluster = make_cluster(shape="n1:gpu*2")
    _, seen = run_show(cluster, 2, "-n2", "--mem=1000", "--gres=gpu:2")
    assert {fact["env"]["CUDA_VISIBLE_DEVICES"] for fact in seen} == {"0,1"}
    assert [fact["env"]["LOCAL_RANK"] for fact in seen] == ["0", "1"]


def test_export_none(cluster):
    """Case B32: sbatch --export=NONE leaves SLURM_EXPORT_ENV=NONE for the inner srun."""
    cluster.write("show.py", SHOW)
    jobid = cluster.sbatch(f"export MINE=here\n{LAUNCH} {PYTHON} show.py", "--export=NONE", "-n2",
                           "--mem=1000")
    assert cluster.wait_ended(jobid)["ExitCode"] == "0:0", cluster.output(jobid)
    for rank in range(2):
        env = facts(cluster, rank)["env"]
        assert env["PATH"] and env["MINE"] == "here" and env["AF_RUN_ID"] == str(jobid)


def test_every_rank_has_its_cpus(cluster):
    """Case B34: srun 22.05 forgets sbatch's --cpus-per-task; nproc honours OMP_NUM_THREADS."""
    jobid = cluster.sbatch(f"{LAUNCH} bash -c 'echo nproc $(nproc) $SLURM_CPUS_PER_TASK'", "-N2",
                           "-n2", "-c8", "--mem=1000")
    cluster.wait_ended(jobid)
    lines = re.findall(r"^\[\d\] nproc .*$", cluster.output(jobid), re.MULTILINE)
    assert sorted(lines) == ["[0] nproc 8 8", "[1] nproc 8 8"], cluster.output(jobid)


def test_thread_count_of_the_person_is_kept(cluster):
    _, seen = run_show(cluster, 1, "-n1", "-c8", "--mem=1000", env={"OMP_NUM_THREADS": "3"})
    assert seen[0]["env"]["OMP_NUM_THREADS"] == "3"


def test_two_jobs_on_a_node_with_taken_ports(cluster):
    """Case B04: neither 29500 nor a port of the ephemeral range; two worlds beside each other."""
    cluster.write("sum.py", ALLREDUCE)
    cluster.write("hold.py", """\
import socket, time
holders = []
for port in list(range(10000, 10200)) + [29500]:
    holder = socket.socket()
    try:
        holder.bind(("", port))
        holder.listen()
    except OSError:
        continue  # a rank of one of the worlds was first
    holders.append(holder)
print("holding", flush=True)
time.sleep(600)
""")
    holder = cluster.popen(PYTHON, "hold.py", node="n1")
    try:
        assert holder.stdout.readline() == "holding\n"
        script = f"{LAUNCH} -v {PYTHON} sum.py"
        jobs = [cluster.sbatch(script, "-w", "n1", "-n2", "-c1", "--mem=1000", name=f"job{i}.sh")
                for i in range(2)]
        ports = set()
        for jobid in jobs:
            assert cluster.wait_ended(jobid, timeout=90)["ExitCode"] == "0:0", cluster.output(jobid)
            text = cluster.output(jobid)
            assert len(re.findall(r"sum 3.0 of 2", text)) == 2, text
            ports.add(int(re.search(r"master [\d.]+:(\d+)", text)[1]))
        low, high = map(int, cluster.run("cat", "/proc/sys/net/ipv4/ip_local_port_range",
                                         node="n1").stdout.split())
        assert all(not low <= port <= high for port in ports)
    finally:
        holder.kill()
        holder.wait()


def test_ranks_meet_although_host_names_differ(make_cluster):
    """Case B01 (and B45): on each node its own name is a loopback address and has an alias first."""
    cluster = make_cluster()
    for node in ("n1", "n2"):
        cluster.shell(f"""{{ echo "127.0.1.1 {node}.another.example {node}"; grep -vw {node} /etc/hosts; }} >/tmp/hosts
            mount --bind /tmp/hosts /etc/hosts""", root=True, node=node)
    cluster.write("sum.py", ALLREDUCE)
    cluster.write("meet.sh", f"""\
getent hosts "$(hostname)"
case $MASTER_ADDR in 10.99.0.*) ;; *) echo "master $MASTER_ADDR"; exit 1;; esac
exec {PYTHON} sum.py
""", mode=0o755)
    done = cluster.run("srun", "-N2", "-n2", "-c1", "--mem=1000", LAUNCH, "bash", "meet.sh",
                       timeout=30)
    assert len(re.findall("127.0.1.1 .*another.example", done.stdout)) == 2, done.stdout
    assert len(re.findall("sum 3.0 of 2", done.stdout)) == 2, done.stdout


def test_salloc_and_standard_input(cluster):
    done = cluster.run("salloc", "-N2", "-n2", "--mem=1000", LAUNCH, "cat", input="one\ntwo\n")
    assert done.stdout == "[0] one\n[0] two\n"


def test_outside_slurm_a_world_on_this_machine(cluster):
    cluster.write("sum.py", ALLREDUCE)
    done = cluster.run(LAUNCH, "--workers", "2", PYTHON, "sum.py", timeout=90)
    assert sorted(done.stdout.splitlines()) == ["[0] sum 3.0 of 2", "[1] sum 3.0 of 2"]


def test_dry_run_prints_the_plan_and_starts_nothing(cluster):
    for command in (["salloc"], ["srun"]):
        # A PyTorch program brings its own NCCL: the plan is the same where the nodes have none.
        done = cluster.run(*command, "-N3", "-n3", "--mem=1000", "--gres=gpu:1", LAUNCH, "--dry-run",
                           "--program=torch", "touch", "started")
        assert "backend nccl: every card carries one rank" in done.stdout
        assert re.search(r"2\s+n3\s+0\s+1g.5gb", done.stdout), done.stdout
    assert not cluster.host_path("started").exists()
    assert not list(cluster.host_path(".").glob("af-runs/[!.]*"))


def test_several_launches_in_one_job_have_a_run_directory_each(cluster):
    jobid = cluster.sbatch(f"{LAUNCH} echo first\n{LAUNCH} echo second", "-n1", "--mem=1000")
    cluster.wait_ended(jobid)
    assert cluster.read(f"af-runs/{jobid}/logs/attempt-0/gen-0/rank-0.log") == "first\n"
    assert cluster.read(f"af-runs/{jobid}.1/logs/attempt-0/gen-0/rank-0.log") == "second\n"


def test_the_secret_is_the_persons_alone(cluster):
    jobid = cluster.sbatch(f"{LAUNCH} true", "-N2", "-n2", "--mem=1000")
    cluster.wait_ended(jobid)
    secret = cluster.host_path(f"af-runs/{jobid}/secret")
    assert secret.stat().st_mode & 0o777 == 0o600
    text = secret.read_text()
    for log in cluster.host_path(f"af-runs/{jobid}").rglob("*"):
        assert log == secret or log.is_dir() or text not in log.read_text()


def test_session_socket_shares_keys_and_journals_reports(cluster):
    cluster.write("session.py", """\
import json, os, socket
name = os.environ["AF_SOCKET"]
assert name.startswith("@")
s = socket.socket(socket.AF_UNIX)
s.connect("\\0" + name[1:])
f = s.makefile("rw")
def ask(**request):
    f.write(json.dumps(request) + "\\n"); f.flush()
    return json.loads(f.readline())
rank = os.environ["RANK"]
f.write(json.dumps({"op": "report", "step": int(rank), "metrics": {"loss": 0.5}}) + "\\n")
print(ask(id=1, op="set", key="from-" + rank, value="hello " + rank))
other = str(1 - int(rank))
print(ask(id=2, op="get", key="from-" + other, timeout=20)["value"])
print(ask(id=3, op="get", key="never", timeout=0.1))
""")
    jobid = cluster.sbatch(f"{LAUNCH} {PYTHON} session.py", "-N2", "-n2", "--mem=1000")
    assert cluster.wait_ended(jobid)["ExitCode"] == "0:0", cluster.output(jobid)
    text = cluster.output(jobid)
    for rank in range(2):
        assert f"[{rank}] hello {1 - rank}" in text
        assert f"[{rank}] {{'error': 'timeout', 'id': 3, 'ok': False}}" in text, text
    journal = [json.loads(line) for line in cluster.read(f"af-runs/{jobid}/events.jsonl").splitlines()]
    reports = {event["rank"]: event["step"] for event in journal if event["event"] == "report"}
    assert reports == {0: 0, 1: 1}


def test_a_world_inside_a_rank_is_refused_in_words(cluster):
    done = cluster.run("srun", "-n1", "--mem=1000", LAUNCH, LAUNCH, "true", check=False)
    assert done.returncode == 120
    assert "this process is a rank of a world already" in done.stderr


def test_a_job_submitted_by_a_rank_is_a_run_of_its_own(cluster):
    cluster.write("inner.sh", f"#!/bin/bash\n{LAUNCH} bash -c 'echo run $AF_RUN_ID $AF_RUN_DIR'\n")
    jobid = cluster.sbatch(f"{LAUNCH} sbatch --parsable -n1 --mem=1000 -o inner.out inner.sh", "-n1",
                           "--mem=1000")
    cluster.wait_ended(jobid)
    inner = int(re.search(r"\[0\] (\d+)", cluster.output(jobid))[1])
    assert cluster.wait_ended(inner)["ExitCode"] == "0:0"
    assert f"run {inner} {cluster.cwd}/af-runs/{inner}" in cluster.read("inner.out")
