# SPDX-License-Identifier: Apache-2.0
"""python/af/train/_storage.py: checkpoints that are there whole or not at all."""
import errno
import importlib.util
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
STORAGE = REPO / "python/af/train/_storage.py"

# By its path: what is tested here needs nothing else of the package, torch least of all.
_spec = importlib.util.spec_from_file_location("af_storage_under_test", STORAGE)
storage = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(storage)


@pytest.fixture
def warnings():
    return []


@pytest.fixture
def make_store(tmp_path, warnings):
    def make(keep=None, **options):
        return storage.CheckpointStore(tmp_path / "checkpoints", keep, warnings.append, **options)

    return make


@pytest.fixture
def source(tmp_path):
    """A directory with some files: source("text") -> its path."""

    def make(text="state", **more):
        folder = tmp_path / f"source-{len(list(tmp_path.iterdir()))}"
        (folder / "shards").mkdir(parents=True)
        (folder / "state.pt").write_text(text)
        (folder / "shards/rank-1.pt").write_text("")
        for name, content in more.items():
            (folder / name).write_text(content)
        return str(folder)

    return make


def names(store):
    return sorted(os.listdir(store.root))


def steps(store):
    return [int(name[5:]) for name in names(store) if name.startswith("step-")]


def bad_descriptor(_):
    raise OSError(errno.EBADF, "Bad file descriptor")


# What lies on the disk


def test_what_was_saved_is_found(make_store, source, warnings):
    store = make_store()
    assert store.newest() is None
    store.save(9, source("nine"), {"loss": 0.5})
    path = store.save(10, source("ten"), {"loss": 0.25, "epoch": 3})
    assert path == f"{store.root}/step-000000000010"
    assert store.newest() == (path, 10, {"loss": 0.25, "epoch": 3})
    assert pathlib.Path(path, "state.pt").read_text() == "ten"
    assert pathlib.Path(path, "shards/rank-1.pt").read_text() == ""
    assert names(store) == ["step-000000000009", "step-000000000010"]
    assert warnings == []


# As tests/unit/train_checkpoint/checkpoint_test.cc says that the C++ library writes it.
CPP_MANIFEST = """{
  "files": {
    "shards/rank-1.pt": {
      "bytes": 0,
      "crc32": "00000000"
    },
    "state.pt": {
      "bytes": 9,
      "crc32": "cbf43926"
    }
  },
  "format": 1,
  "step": 420
}
"""


def test_a_checkpoint_of_the_cpp_library_is_read(make_store, source):
    store = make_store()
    folder = pathlib.Path(store.root, "step-000000000420")
    shutil.copytree(source("123456789"), folder)
    (folder / "manifest.json").write_text(CPP_MANIFEST)
    assert store.newest() == (str(folder), 420, {})


def test_the_manifest_is_that_of_the_cpp_library(make_store, source):
    # Our own file aside, to the byte: the C++ test of the same text shows that it is read there.
    assert CPP_MANIFEST.replace("\n", "\\n") in (
        (REPO / "tests/unit/train_checkpoint/checkpoint_test.cc").read_text().replace("\n", "\\n"))
    path = pathlib.Path(make_store().save(420, source("123456789"), {"loss": 1}))
    manifest = json.loads((path / "manifest.json").read_text())
    own = (path / "af.json").read_bytes()
    assert manifest["files"].pop("af.json") == {"bytes": len(own), "crc32": f"{zlib.crc32(own):08x}"}
    assert json.dumps(manifest, indent=2, sort_keys=True) + "\n" == CPP_MANIFEST


DIGITS = REPO / "build/examples/digits"


@pytest.mark.skipif(not DIGITS.exists(), reason="build/examples/digits is not built: make")
def test_cpp_and_python_go_on_from_each_other(make_store):
    store = make_store()

    def train(epochs):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AF_", "SLURM_"))}
        done = subprocess.run([DIGITS, "--data", REPO / "examples/data/digits.h5", "--epochs", str(epochs),
                               "--checkpoints", store.root], env=environment, text=True,
                              stderr=subprocess.STDOUT, stdout=subprocess.PIPE, timeout=120)
        assert done.returncode == 0, done.stdout
        return done.stdout

    train(1)
    path, step, metadata = store.newest()
    assert step > 0 and metadata == {}
    saved = store.save(step + 1, path, {"from": "python"})
    shutil.rmtree(path)
    resumed, *_, checkpoint = train(2).splitlines()
    assert resumed == f"resumed from {saved}"
    assert checkpoint == f"checkpoint {store.newest()[0]}" and store.newest()[1] > step + 1


@pytest.mark.parametrize("spoil, reason", [
    (lambda path: (path / "manifest.json").unlink(), "no manifest.json"),
    (lambda path: os.truncate(path / "state.pt", 3), "state.pt has 3 bytes instead of 5"),
    (lambda path: (path / "state.pt").write_text("stale"), "CRC-32"),
    (lambda path: (path / "state.pt").unlink(), "state.pt: No such file"),
    (lambda path: os.truncate(path / "manifest.json", 30), "not a manifest"),
    (lambda path: (path / "manifest.json").write_text("[]"), "not a manifest"),
    (lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe{}"), "not a manifest"),
    (lambda path: (path / "manifest.json").write_text('{"format": 2}'), "format 2"),
    (lambda path: (path / "manifest.json").write_text('{"format": 1, "step": 2, "files": {}}'), "of step 2"),
    (lambda path: (path / "manifest.json").write_text(
        '{"format": 1, "step": 3, "files": {"../x": {"bytes": 1, "crc32": "0"}}}'), "outside"),
    (lambda path: (shutil.rmtree(path), path.mkdir()), "no manifest.json"),
    (lambda path: (shutil.rmtree(path), path.write_text("a file")), "Not a directory"),
])
def test_one_that_is_not_good_is_skipped_with_path_and_reason(make_store, source, warnings, spoil, reason):
    store = make_store()
    store.save(1, source(), {})
    good = store.save(2, source(), {})
    bad = store.save(3, source(), {})
    spoil(pathlib.Path(bad))
    assert store.newest()[0] == good
    assert len(warnings) == 1 and bad in warnings[0] and reason in warnings[0], warnings


def test_names_that_are_not_ours_are_not_looked_at(make_store, source, warnings):
    store = make_store()
    good = store.save(5, source(), {})
    for name in ("step-9", "step-0000000000001", "epoch-7", "step-000000000007.bak"):
        os.mkdir(f"{store.root}/{name}")
    assert store.newest()[0] == good
    assert warnings == []


def test_a_checkpoint_that_another_rank_removes_meanwhile_is_no_fault(make_store, source, warnings, monkeypatch):
    store = make_store()
    good, gone = store.save(1, source(), {}), store.save(2, source(), {})
    check = storage.fault_of_checkpoint

    def remove_first(path, *rest):
        if path == gone:
            shutil.rmtree(path)
        return check(path, *rest)

    monkeypatch.setattr(storage, "fault_of_checkpoint", remove_first)
    assert store.newest()[0] == good
    assert warnings == []


# What stays


def test_the_newest_stay(make_store, source):
    store = make_store(keep=2)
    for step in range(1, 6):
        store.save(step, source(), {})
    assert steps(store) == [4, 5]


def test_bad_ones_do_not_count_and_the_last_good_one_stays(make_store, source):
    store = make_store(keep=2)
    for step in (1, 2):
        store.save(step, source(), {})
    os.truncate(f"{store.root}/step-000000000002/state.pt", 0)
    store.save(3, source(), {})
    assert steps(store) == [1, 3]


def test_what_is_not_ours_stays(make_store, source):
    store = make_store(keep=1)
    store.save(1, source(), {})
    os.mkdir(f"{store.root}/step-000000000000")  # no manifest
    os.mkdir(f"{store.root}/.writing-step-000000000001-77")  # the C++ library's
    store.save(9, source(), {})
    store.save(2, source(), {})  # set back: what is further on is not removed by it
    assert steps(store) == [0, 2, 9]
    assert ".writing-step-000000000001-77" in names(store)


@pytest.mark.parametrize("losses, stay", [
    ([5, 1, 2, 3, 4], [2, 3, 5]),   # the best two, and the newest
    ([5, 4, 3, 2, 1], [4, 5]),      # the newest is among the best
    ([1, 1, 1, 1, 1], [4, 5]),      # of equal ones the newer
    ([None, None, 1, None, 2], [3, 5]),
])
def test_the_best_stay(make_store, source, losses, stay):
    store = make_store(keep=2, score=lambda report: None if report["loss"] is None else -report["loss"])
    for step, loss in enumerate(losses, 1):
        store.save(step, source(), {"loss": loss})
    assert steps(store) == stay


def test_a_score_that_fails_loses_nothing(make_store, source, warnings):
    store = make_store(keep=1, score=lambda report: report["accuracy"])
    store.save(1, source(), {})
    store.save(2, source(), {})
    assert steps(store) == [1, 2]
    assert "accuracy" in warnings[0]


# How it is written


def test_everything_is_on_the_disk_before_it_has_its_name(make_store, source, monkeypatch):
    done, fsync, rename = [], os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda *pair: (done.append("rename"), rename(*pair)))
    store = make_store()
    store.save(1, source(), {})
    named = done.index("rename")
    before = {re.sub(r".*/\.saving-[^/]*", "", path) for path in done[:named] if ".saving-" in path}
    assert before == {"", "/shards", "/shards/rank-1.pt", "/state.pt", "/af.json", "/manifest.json"}
    assert done[named + 1:] == [store.root]


@pytest.mark.parametrize("exchange", [True, False])
def test_one_of_the_same_step_is_replaced(make_store, source, warnings, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    store = make_store(keep=1)
    store.save(7, source("old"), {"n": 1})
    path = store.save(7, source("new"), {"n": 2})
    assert store.newest() == (path, 7, {"n": 2})
    assert pathlib.Path(path, "state.pt").read_text() == "new"
    assert names(store) == ["step-000000000007"]


def test_others_may_read_what_a_private_directory_held(make_store, source):
    folder = source()
    os.chmod(folder, 0o700)  # as tempfile makes them
    old = os.umask(0o022)
    try:
        path = make_store().save(1, folder, {})
    finally:
        os.umask(old)
    assert os.stat(path).st_mode & 0o777 == 0o755


def test_numbers_of_torch_and_numpy_are_metadata(make_store, source):
    class Scalar:
        def item(self):
            return 0.125

    store = make_store()
    store.save(1, source(), {"loss": Scalar()})
    assert store.newest()[2] == {"loss": 0.125}


def test_a_checkpoint_can_be_saved_again(make_store, source):
    store = make_store()
    path = store.save(1, source("kept"), {"n": 1})
    again = store.save(2, path, {"n": 2})
    assert store.newest() == (again, 2, {"n": 2})


def test_moved_files_are_taken_without_a_copy(make_store, source):
    folder = source("moved")
    inode = os.stat(f"{folder}/state.pt").st_ino
    path = make_store().save(1, folder, {}, move=True)
    assert os.stat(f"{path}/state.pt").st_ino == inode
    assert not os.path.exists(f"{folder}/state.pt")


def test_what_cannot_be_linked_is_copied(make_store, source, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    folder = source("far away")
    store = make_store()
    store.save(1, folder, {}, move=True)
    assert pathlib.Path(store.newest()[0], "state.pt").read_text() == "far away"
    assert not os.path.exists(f"{folder}/state.pt")


def _fifo(folder):
    os.mkfifo(f"{folder}/pipe")


def _directory_link(folder):
    os.symlink("shards", f"{folder}/link")


def _dangling(folder):
    os.symlink("nowhere", f"{folder}/link")


def _not_utf8(folder):
    pathlib.Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("x")


def _own_manifest(folder):
    pathlib.Path(folder, "manifest.json").write_text('{"name": "my web app"}')


@pytest.mark.parametrize("spoil, metadata, reason", [
    (shutil.rmtree, {}, "not a directory"),
    (_fifo, {}, "not a plain file"),
    (_directory_link, {}, "link to a directory"),
    (_dangling, {}, "No such file"),
    (_not_utf8, {}, "not UTF-8"),
    (_own_manifest, {}, "manifest.json is kept for af"),
    (lambda folder: None, {"model": object()}, "object cannot be written as JSON"),
])
def test_what_cannot_be_saved_is_said_and_leaves_nothing(make_store, source, spoil, metadata, reason):
    store = make_store()
    store.save(1, source(), {})
    folder = source()
    spoil(folder)
    with pytest.raises(storage.CheckpointError, match=reason) as caught:
        store.save(2, folder, metadata)
    assert "\n" not in str(caught.value)
    assert names(store) == ["step-000000000001"]


def test_links_to_files_are_saved_as_files(make_store, source):
    folder = source()
    os.symlink("state.pt", f"{folder}/latest.pt")
    path = pathlib.Path(make_store().save(1, folder, {}, move=True))
    assert (path / "latest.pt").read_text() == "state" and not (path / "latest.pt").is_symlink()


@pytest.mark.parametrize("step", [-1, 1.5, None, "7", 10**12])
def test_a_step_is_a_count(make_store, source, step):
    with pytest.raises(storage.CheckpointError, match="step"):
        make_store().save(step, source(), {})


def test_none_cannot_be_kept(make_store):
    with pytest.raises(storage.CheckpointError, match="cannot keep 0"):
        make_store(keep=0)


def test_a_root_that_cannot_be_read_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(storage.CheckpointError, match="cannot read the checkpoints"):
        storage.CheckpointStore(tmp_path / "file").newest()


# Full disks (users.md B26)

FULL = """
import importlib.util, os, pathlib, subprocess, sys
spec = importlib.util.spec_from_file_location("s", sys.argv[1])
s = importlib.util.module_from_spec(spec); spec.loader.exec_module(s)
root, source = sys.argv[2], pathlib.Path(sys.argv[3])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", root], check=True)
store = s.CheckpointStore(root, keep=2)
(source / "state.pt").write_bytes(b"1" * 300_000)
first = store.save(1, source, {})
(source / "state.pt").write_bytes(b"2" * 900_000)
for attempt in (store.save, lambda *a: store.save_async(*a).wait()):
    try:
        attempt(2, source, {})
        print("saved")
    except s.CheckpointError as error:
        print(error)
print(sorted(os.listdir(root)) == [os.path.basename(first)], store.newest()[:2] == (first, 1))
(source / "state.pt").write_bytes(b"3" * 100_000)
store.save(3, source, {})
print(store.newest()[1])
"""


def private_mounts():
    """The command that gives a process mounts of its own; None where that is not allowed."""
    for command in (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"]):
        try:
            if subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], stderr=subprocess.DEVNULL).returncode == 0:
                return command
        except OSError:
            pass
    return None


def test_a_full_disk_leaves_the_older_ones(tmp_path):
    command = private_mounts()
    if command is None:
        pytest.skip("no small tmpfs can be mounted: needs root or user namespaces")
    (tmp_path / "root").mkdir()
    (tmp_path / "source").mkdir()
    done = subprocess.run([*command, sys.executable, "-c", FULL, STORAGE, tmp_path / "root", tmp_path / "source"],
                          text=True, stdout=subprocess.PIPE, check=True, timeout=60)
    *messages, intact, later = done.stdout.splitlines()
    assert len(messages) == 2
    for message in messages:
        assert f"{tmp_path}/root/step-000000000002" in message and "is full" in message and "1 MiB" in message
        assert "remove files there or save elsewhere" in message
    assert intact == "True True"
    assert later == "3"


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
def test_a_quota_leaves_the_older_ones(make_store, source, monkeypatch, call):
    store = make_store()
    store.save(1, source("old"), {})
    real = getattr(os, call)
    failed = []

    def fail(fd, *rest):
        # fsync and close tell late what a network file system could not write
        where = os.readlink(f"/proc/self/fd/{fd}")
        if where.endswith("/state.pt") and "/.saving-" in where and not failed:
            failed.append(where)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return real(fd, *rest)

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(storage.CheckpointError, match="your quota on the file system of .* is used up"):
        store.save(2, source("new"), {})
    assert failed
    assert names(store) == ["step-000000000001"]


def test_a_failed_save_leaves_moved_files_where_they_were(make_store, source, monkeypatch):
    store, folder = make_store(), source()
    monkeypatch.setattr(storage, "_fsync_tree", bad_descriptor)
    with pytest.raises(storage.CheckpointError, match="Bad file descriptor"):
        store.save(1, folder, {}, move=True)
    assert os.path.exists(f"{folder}/state.pt")
    assert names(store) == []


# In the background


@pytest.fixture
def gate(monkeypatch):
    """Holds a save where it would write to the disk, until gate.set()."""
    opened, tree = threading.Event(), storage._fsync_tree
    monkeypatch.setattr(storage, "_fsync_tree", lambda path: (opened.wait(60), tree(path)))
    yield opened
    opened.set()


@pytest.mark.parametrize("move", [False, True])
def test_the_source_is_free_while_the_save_goes_on(make_store, source, gate, move):
    store, folder = make_store(keep=1), source("first")
    handle = store.save_async(1, folder, {"n": 1}, move=move)
    assert not handle.done()
    assert os.path.exists(f"{folder}/state.pt") != move
    shutil.rmtree(folder)
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    assert store.newest() is None
    gate.set()
    path = handle.wait(60)
    assert handle.done() and path == f"{store.root}/step-000000000001"
    assert store.newest() == (path, 1, {"n": 1})
    assert pathlib.Path(path, "state.pt").read_text() == "first"


def test_one_save_at_a_time(make_store, source, gate):
    store = make_store()
    first = store.save_async(1, source(), {})
    seconds = []
    other = threading.Thread(target=lambda: seconds.append(store.save_async(2, source(), {})))
    other.start()
    other.join(0.2)
    assert other.is_alive() and not first.done()  # it waits for the first
    gate.set()
    other.join(60)
    assert first.done()
    seconds[0].wait(60)
    assert steps(store) == [1, 2]


def test_an_error_is_raised_at_the_next_save(make_store, source, monkeypatch):
    store = make_store()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_fsync_tree", bad_descriptor)
        store.save_async(1, source(), {})._ended.wait(60)
    with pytest.raises(storage.CheckpointError, match="step-000000000001"):
        store.save(2, source(), {})
    assert names(store) == []
    store.save(3, source(), {})  # told once
    assert steps(store) == [3]


def test_an_error_that_was_waited_for_is_not_raised_again(make_store, source, monkeypatch):
    store = make_store()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_fsync_tree", bad_descriptor)
        handle = store.save_async(1, source(), {})
        for _ in range(2):  # each time that it is asked, it says so
            with pytest.raises(storage.CheckpointError):
                handle.wait(60)
    store.save(2, source(), {})
    store.wait()


def program(*lines):
    return "\n".join([f"import importlib.util, os, sys, threading, time; sys.argv = [{str(STORAGE)!r}]",
                      "spec = importlib.util.spec_from_file_location('s', sys.argv[0])",
                      "s = importlib.util.module_from_spec(spec); spec.loader.exec_module(s)", *lines])


def test_the_end_of_the_program_waits(tmp_path, source):
    slow = program("tree = s._fsync_tree",
                   "s._fsync_tree = lambda path: (time.sleep(0.3), tree(path))",
                   f"store = s.CheckpointStore({str(tmp_path / 'c')!r})",
                   # Threads of daemons make daemons, unless they are told not to.
                   f"t = threading.Thread(target=store.save_async, args=(1, {source()!r}, {{}}), daemon=True)",
                   "t.start(); t.join()")
    subprocess.run([sys.executable, "-c", slow], check=True, timeout=60)
    assert storage.CheckpointStore(tmp_path / "c").newest()[1] == 1


def test_a_forked_process_does_not_wait_for_its_parents_save(make_store, source, gate):
    store = make_store()
    handle = store.save_async(1, source(), {})
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            store.wait()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    handle.wait(60)


# What dead writers leave


@pytest.fixture
def writer(tmp_path, source):
    """A process that stands in the middle of a save."""
    code = program("s._fsync_tree = lambda path: (print('here', flush=True), time.sleep(600))",
                   f"s.CheckpointStore({str(tmp_path / 'checkpoints')!r}).save(1, {source()!r}, {{}})")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def temporary(store):
    return [name for name in names(store) if name.startswith(".")]


@pytest.mark.parametrize("locks", [True, False])
def test_what_a_living_process_writes_stays_and_what_a_dead_one_left_goes(make_store, source, writer, monkeypatch, locks):
    if not locks:
        monkeypatch.setattr(storage, "_flock", lambda descriptor: None)
    store = make_store()
    store.save(2, source(), {})
    assert len(temporary(store)) == 2  # the directory and its lock
    writer.kill()
    writer.wait()
    store.save(3, source(), {})
    assert temporary(store) == []


def test_another_host_counts_as_living_until_it_has_been_silent_for_long(make_store, source, writer, monkeypatch):
    monkeypatch.setattr(storage, "_here", lambda: "another host")
    store = make_store()
    with monkeypatch.context() as patch:
        later = time.time() + storage._FOREIGN_SILENCE_S + 60
        patch.setattr(time, "time", lambda: later)
        store.save(2, source(), {})
        assert len(temporary(store)) == 2  # silent, but it holds its lock
    writer.kill()
    writer.wait()
    store.save(3, source(), {})
    assert len(temporary(store)) == 2
    monkeypatch.setattr(time, "time", lambda: later)
    store.save(4, source(), {})
    assert temporary(store) == []


def test_a_lock_taken_away_before_it_was_held_is_made_anew(make_store, source, monkeypatch):
    real, taken = storage._flock, []

    def take_first(descriptor):
        if not taken:
            taken.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.unlink(taken[0])
        return real(descriptor)

    monkeypatch.setattr(storage, "_flock", take_first)
    store = make_store()
    store.save(1, source(), {})
    assert taken and names(store) == ["step-000000000001"]


def test_a_removal_cut_short_is_finished(make_store, source):
    store = make_store()
    path = store.save(1, source(), {})
    os.rename(path, f"{store.root}/.removing-step-000000000001-1-1")
    store.save(2, source(), {})
    assert names(store) == ["step-000000000002"]


# Killed at any point (users.md B25)

KILLS = 200
CALLS = ("open", "write", "close", "fsync", "rename", "link", "mkdir", "unlink", "rmdir", "listdir", "stat")


class Count:
    """Counts the calls of `os`, and kills the process in the one of the given number."""

    def __init__(self, fatal=None):
        self.calls, self.fatal = 0, fatal
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name, real):
        def call(*words, **named):
            self.calls += 1
            if self.calls == self.fatal:
                if name == "write":
                    real(words[0], bytes(words[1])[:len(words[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words, **named)

        return call


def in_child(work):
    """Runs work() in a forked process; returns (pid, read end of a pipe)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            signal.alarm(60)
            os.write(writing, str(work()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def state_of(checkpoint):
    """(step, version) of a checkpoint whose files all belong together."""
    path, step, metadata = checkpoint
    version = metadata["version"]
    for name in ("state.pt", "shards/rank-0.pt", "shards/rank-1.pt"):
        content = pathlib.Path(path, name).read_bytes()
        assert content == f"{name} {step} {version} ".encode() * (len(content) // len(f"{name} {step} {version} "))
    return step, version


def test_200_kills_at_random_points_of_a_save(make_store, tmp_path, warnings, monkeypatch):
    monkeypatch.setattr(storage, "_CHUNK", 8192)  # more points at which to die
    dice = random.Random(20240607)
    store = make_store(keep=2)
    exchange = storage._exchange

    def save(step, version, how, fatal):
        source = tmp_path / "source"
        shutil.rmtree(source, ignore_errors=True)
        (source / "shards").mkdir(parents=True)
        for name in ("state.pt", "shards/rank-0.pt", "shards/rank-1.pt"):
            (source / name).write_bytes(f"{name} {step} {version} ".encode() * 1500)
        storage._exchange = exchange if how["exchange"] else lambda one, other: False
        count = Count(fatal)
        if how["background"]:
            store.save_async(step, source, {"version": version}, how["move"]).wait()
        else:
            store.save(step, source, {"version": version}, how["move"])
        return count.calls

    def finish(child):
        pid, reading = child
        status = os.waitpid(pid, 0)[1]
        text = os.read(reading, 100)
        os.close(reading)
        assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
        return int(text) if text else None

    plain = {"exchange": True, "background": False, "move": False}
    began = time.monotonic()
    total = finish(in_child(lambda: save(1, 0, plain, None)))
    took = time.monotonic() - began
    before = state_of(store.newest())
    kills, survived, lost, by_clock = 0, 0, 0, 0
    for version in range(1, 1000):
        again = dice.random() < 0.4
        after = (before[0] + (0 if again else 1), version)
        how = {name: dice.random() < 0.5 for name in plain}
        timed = dice.random() < 0.25
        fatal = None if timed else dice.randint(1, total)
        child = in_child(lambda: save(*after, how, fatal))
        if timed:
            time.sleep(dice.uniform(0, 1.2 * took))
            os.kill(child[0], signal.SIGKILL)
        ended = finish(child)
        found = state_of(store.newest())
        assert found in (before, after), (found, before, after, how, fatal)
        if ended is not None:
            assert found == after
        else:
            kills += 1
            by_clock += timed
            survived += found == after
            lost += found == before
        before = found
        if kills == KILLS:
            break
    assert kills == KILLS
    assert min(survived, lost, by_clock) > 0, (survived, lost, by_clock)  # the dice reached both sides
    assert warnings == []  # under its own name, a checkpoint was never seen that was not whole
    store.save(before[0] + 1, tmp_path / "source", {})
    # Who died before it had written who it was may be on another host: gone after that time.
    later = time.time() + storage._FOREIGN_SILENCE_S + 60
    monkeypatch.setattr(time, "time", lambda: later)
    store.save(before[0] + 2, tmp_path / "source", {})
    assert temporary(store) == [] and len(steps(store)) == 2
