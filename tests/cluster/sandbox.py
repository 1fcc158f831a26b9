# SPDX-License-Identifier: Apache-2.0
"""A sandbox cluster (scripts/sandbox) as tests see it: start, run commands, submit, wait, read.

A test that needs a cluster takes the fixture `cluster` or `make_cluster` of conftest.py.
"""
import os
import pathlib
import re
import shutil
import subprocess
import time

REPO = pathlib.Path(__file__).resolve().parents[2]
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY",
         "BOOT_FAIL", "DEADLINE"}


def wait_for(predicate, timeout=30, what=None, interval=0.05):
    """Polls until predicate() is true and returns its value; fails the test after `timeout` s.

    `what` is a text, or a function called at the deadline, for the failure's message.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            text = what() if callable(what) else what or getattr(predicate, "__name__", "condition")
            raise AssertionError(f"not within {timeout} s: {text}")
        time.sleep(interval)


def unless_open_mpi_crashed(attempt, text_of):
    """attempt()'s result; up to three attempts while text_of(result) tells of Open MPI's crash.

    Open MPI 4.1 over several nodes crashes in MPI_Init in a few of 100 starts, with and without af
    (docs/design/launcher-protocol.md). Any other failure is given back as it is.
    """
    for _ in range(3):
        result = attempt()
        if "Signal: Segmentation fault" not in text_of(result):
            break
    return result


class Sandbox:
    """One sandbox. Paths given to run() and friends are the sandbox's (/work, /depot, …)."""

    def __init__(self, name, *, shape=None, proctrack=None, plugin=None, plugstack=None, site=None,
                 slurm_conf=(), cgroup_conf=(), repo=REPO, uid=None):
        self.name, self.repo, self.uid = name, pathlib.Path(repo), uid
        self.dir = self.repo / "build" / "sandbox" / name
        self.cwd = None  # where run() and sbatch() start; None: /work/users/ada
        self.options = []
        for option, value in (("--shape", shape), ("--proctrack", proctrack), ("--plugin", plugin),
                              ("--plugstack", plugstack), ("--site", site)):
            if value is not None:
                self.options += [option, str(value)]
        for line in slurm_conf:
            self.options += ["--slurm-conf", line]
        for line in cgroup_conf:
            self.options += ["--cgroup-conf", line]

    # --- life -------------------------------------------------------------------------------

    def command(self, *words):
        """The command line of `scripts/sandbox --name NAME WORDS…` (as user `uid` if given)."""
        line = [str(self.repo / "scripts" / "sandbox"), "--name", self.name, *map(str, words)]
        if self.uid is not None:
            ids = ["--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups"]
            line = ["setpriv", *ids, *line]
        return line

    def call(self, *words, timeout=60, check=True):
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)
        if check and done.returncode != 0:
            raise AssertionError(f"sandbox {' '.join(map(str, words))}: exit code "
                                 f"{done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def up(self):
        return self.call("up", *self.options)

    def down(self):
        return self.call("down")

    def remove(self):
        """Down, and its directory deleted."""
        self.down()
        shutil.rmtree(self.dir, ignore_errors=True)

    def first_process(self):
        """This machine's pid of the sandbox's first process."""
        return int((self.dir / "state" / "pid").read_text())

    # --- commands ---------------------------------------------------------------------------

    def run_line(self, *cmd, root=False, node=None, cwd=None, env=None):
        words = ["run"]
        if root:
            words.append("--root")
        if node:
            words += ["--node", node]
        if cwd or (self.cwd and not root):
            words += ["--cwd", cwd or self.cwd]
        for key, value in (env or {}).items():
            words += ["--env", f"{key}={value}"]
        return self.command(*words, "--", *cmd)

    def run(self, *cmd, root=False, node=None, cwd=None, env=None, input=None, timeout=60,
            check=True):
        """Runs CMD as ada on the login node (or as root, or on a node); text output captured.

        check=True: a non-zero exit code fails the test with CMD's output.
        """
        done = subprocess.run(self.run_line(*cmd, root=root, node=node, cwd=cwd, env=env),
                              input=input, stdin=subprocess.DEVNULL if input is None else None,
                              capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, cmd))}: exit code {done.returncode}\n"
                                 f"stdout: {done.stdout}\nstderr: {done.stderr}")
        return done

    def shell(self, script, **kwargs):
        """run() of a bash script given as text."""
        return self.run("bash", "-c", script, **kwargs)

    def popen(self, *cmd, root=False, node=None, cwd=None, env=None, **kwargs):
        """CMD as a subprocess.Popen (text pipes unless told otherwise); killing it ends CMD."""
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", subprocess.PIPE)
        kwargs.setdefault("stderr", subprocess.PIPE)
        kwargs.setdefault("text", True)
        return subprocess.Popen(self.run_line(*cmd, root=root, node=node, cwd=cwd, env=env),
                                **kwargs)

    # --- files ------------------------------------------------------------------------------

    def host_path(self, path):
        """Where a path of the sandbox lies on this machine: /work/…, /depot/…, /home/…."""
        path = str(path)
        if not path.startswith("/"):
            path = f"{self.cwd or '/work/users/ada'}/{path}"
        match = re.fullmatch(r"/(work|depot|home)(/.*)?", path)
        assert match, f"{path} is not on storage that this machine sees"
        return self.dir / path[1:]

    def write(self, path, text, mode=0o644):
        """Writes a file of ada's (relative: in the current directory); returns its path inside."""
        target = self.host_path(path)
        missing = [p for p in (target, *target.parents) if not p.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        if os.geteuid() == 0:
            owner = (self.dir / "work" / "users" / "ada").stat()
            for made in missing:
                os.chown(made, owner.st_uid, owner.st_gid)
        return "/" + str(target.relative_to(self.dir))

    def read(self, path):
        return self.host_path(path).read_text(errors="replace")

    def log(self, daemon):
        """The log of slurmctld, slurmd-n1, munged, …"""
        return (self.dir / "log" / f"{daemon}.log").read_text(errors="replace")

    # --- jobs -------------------------------------------------------------------------------

    def sbatch(self, script, *options, env=None, name="job.sh", check=True, **kwargs):
        """Submits a script given as text; returns the job id (check=False: the finished process).

        The script is written to NAME in the current directory; output: slurm-JOBID.out there.
        """
        if not script.startswith("#!"):
            script = "#!/bin/bash\n" + script
        path = self.write(name, script, mode=0o755)
        done = self.run("sbatch", "--parsable", *options, path, env=env, check=check, **kwargs)
        return int(done.stdout.strip().split(";")[0]) if check else done

    def job(self, jobid):
        """`scontrol show job` as a dict; {} when Slurm does not know it."""
        done = self.run("scontrol", "show", "job", "-o", str(jobid), check=False)
        if done.returncode != 0:
            return {}
        fields = {}
        for word in done.stdout.split("\n")[0].split(" "):
            key, equals, value = word.partition("=")
            if equals:
                fields[key] = value
        return fields

    def state(self, jobid):
        return self.job(jobid).get("JobState", "")

    def wait_state(self, jobid, *states, timeout=30):
        """Waits for one of the states (any end counts: "ENDED"); returns the job's dict."""
        wanted = set().union(*(ENDED if s == "ENDED" else {s} for s in states))
        last = {}

        def there():
            nonlocal last
            last = self.job(jobid)
            return last if last.get("JobState") in wanted else None

        return wait_for(there, timeout, lambda: f"job {jobid} in {'/'.join(states)}: it is "
                        f"{last.get('JobState')}, reason {last.get('Reason')}", interval=0.1)

    def wait_running(self, jobid, timeout=30):
        return self.wait_state(jobid, "RUNNING", timeout=timeout)

    def wait_ended(self, jobid, timeout=60):
        return self.wait_state(jobid, "ENDED", timeout=timeout)

    def output(self, jobid, path=None):
        """What the job printed so far ("" when the file is not there yet)."""
        path = path or self.job(jobid).get("StdOut") or f"slurm-{jobid}.out"
        target = self.host_path(path)
        return target.read_text(errors="replace") if target.exists() else ""

    def wait_output(self, jobid, pattern, timeout=30, path=None):
        """Waits until the job's output matches the regular expression; returns the match."""
        path = path or self.job(jobid).get("StdOut")
        text = ""

        def there():
            nonlocal text
            text = self.output(jobid, path)
            return re.search(pattern, text, re.MULTILINE)

        return wait_for(there, timeout, lambda: f"/{pattern}/ in the output of job {jobid}: {text!r}")

    def cancel_all(self):
        """Cancels every job and waits until the queue is empty."""
        ids = self.run("squeue", "-h", "-o", "%A").stdout.split()
        if ids:
            self.run("scancel", *sorted(set(ids)), root=True, check=False)
            wait_for(lambda: not self.run("squeue", "-h").stdout.strip(), 90,
                     lambda: "an empty queue: " + self.run("squeue").stdout, interval=0.1)

    # --- processes --------------------------------------------------------------------------

    def processes(self):
        """This machine's pids of all processes in the sandbox (its pid namespace)."""
        return processes_in_pid_namespace((self.dir / "state" / "pidns").read_text().strip())


def processes_in_pid_namespace(name):
    """Pids whose pid namespace link reads `name` ("pid:[…]")."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == name:
                found.append(int(pid))
        except OSError:
            pass  # ended meanwhile, or not ours to see
    return found
