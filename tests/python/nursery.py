# SPDX-License-Identifier: Apache-2.0
"""Imports torch and forks ranks on request; see Nursery in fake_agent.py."""

import json
import os
import runpy
import signal
import sys
import traceback

import torch  # noqa: F401
import torch.utils.data  # noqa: F401

# What current versions import at the first optimizer takes seconds too.
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)

_out = os.dup(1)


def tell(message):
    # One write: the handler below may come in the middle of another one.
    os.write(_out, json.dumps(message).encode() + b"\n")


def child(request):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 64)
    sys.stdin = open(0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path.insert(0, request["env"]["PYTHONPATH"])
    sys.argv = [request["program"]]
    runpy.run_path(request["program"], run_name="__main__")


def reap(*_):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


signal.signal(signal.SIGCHLD, reap)
for line in sys.stdin:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        try:
            child(json.loads(line))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        else:
            code = 0
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    tell({"born": pid})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
