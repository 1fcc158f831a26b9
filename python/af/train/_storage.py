# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on disk: directories that are there whole or not at all.

    ROOT/step-000000000420/            one checkpoint; the number is the step it was taken after
         state.pt, ...                 what the person put into it
         af.json                       {"format": 1, "metadata": {...}}
         manifest.json                 {"format": 1, "step": 420, "files":
                                         {"state.pt": {"bytes": 1234, "crc32": "0badc0de"}, ...}}
    ROOT/.saving-step-...-HOST-PID-N/  one being written, or left by a process that died
    ROOT/.saving-step-...-HOST-PID-N.lock   held with flock as long as its writer lives
    ROOT/.replaced-step-.../           for a moment, where two names cannot be exchanged (NFS)
    ROOT/.removing-step-.../           for a moment, one that is no longer kept

A checkpoint is good if its manifest can be read, names the step of the directory, and every file in
it has the size and the CRC-32 that the manifest says. The C++ library reads and writes the same
(docs/train.md). Standard library only, so that it also runs where torch does not.
"""
import ctypes
import errno
import itertools
import json
import operator
import os
import re
import shutil
import socket
import stat
import sys
import threading
import time
import zlib

MANIFEST = "manifest.json"
METADATA = "af.json"
_SAVING = ".saving-"
_REPLACED = ".replaced-"
_REMOVING = ".removing-"
_CHUNK = 1 << 20
# How long nothing may have been written by a writer on another host, whose lock is free, before it
# counts as dead: some mounts of network file systems keep locks to their own host.
_FOREIGN_SILENCE_S = 3600
_numbers = itertools.count(1)


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or looked for; one line that says which, why, what to do."""


class SaveHandle:
    """A save that goes on in the background. Methods may be called from any thread."""

    def __init__(self, path, step):
        self.path = path
        self.step = step
        self._ended = threading.Event()
        self._error = None
        self._told = False

    def done(self):
        """True when the save has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout=None):
        """The checkpoint's path once it is complete on disk. Raises the CheckpointError that ended
        it (the store's next save does not raise it again then), or TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"checkpoint {self.path} is still being saved")
        if self._error is not None:
            self._told = True
            raise self._error
        return self.path


class CheckpointStore:
    """The checkpoints below one directory. Save from one rank only; `newest` may run on all.

    `keep`: how many good checkpoints stay after a save; None: all. Older ones and bad ones are
    removed then, the one just saved never is. Directories without a manifest are never touched.
    `score`: a function from a checkpoint's metadata to a number or None; with it the `keep` with
    the highest numbers stay, and the newest.
    `warn`: called with one line for a person, from the thread that saves.
    """

    def __init__(self, root, keep=None, warn=None, score=None):
        if keep is not None and keep < 1:
            raise CheckpointError(f"checkpoints in {root}: cannot keep {keep}: it has to be 1 or more, or None")
        self.root = os.path.abspath(os.fspath(root))
        self.keep = keep
        self._score = score
        self._warn = warn or (lambda line: print(f"af: {line}", file=sys.stderr, flush=True))
        self._in_flight = None
        self._pid = os.getpid()

    def save(self, step, source_dir, metadata, move=False):
        """Saves what is in `source_dir` as the checkpoint of `step` (0 or more) and returns its path;
        then it is complete on disk. One of the same step is replaced.

        `metadata`: a dict that JSON can hold. `move=True`: the files may be taken instead of copied;
        they are gone from `source_dir` afterwards. Waits for a save in the background first, and
        raises what ended it. Raises CheckpointError (disk full, no permission, ...): nothing of
        the new checkpoint is left then, `source_dir` and the older ones are as they were.
        """
        self.wait()
        writing = _Writing(self, step)
        try:
            writing.take(source_dir, metadata, move)
            return writing.finish()
        except BaseException as error:
            raise writing.undo(error)

    def save_async(self, step, source_dir, metadata, move=False):
        """Like `save`, but returns a SaveHandle when `source_dir` is no longer needed: after its files
        are copied, or (`move=True`, same file system) taken. Checksums of files taken, fsync and the
        removal of old checkpoints happen in a thread, which the end of the program waits for. One
        save at a time: a second waits for the first. What fails in the thread is raised by the
        handle's wait(), or else by the next save, save_async or wait of this store.
        """
        self.wait()
        writing = _Writing(self, step)
        try:
            writing.take(source_dir, metadata, move)
        except BaseException as error:
            raise writing.undo(error)
        writing.give_away()  # a caller who clears its directory must not meet us there
        handle = SaveHandle(writing.final, step)

        def run():
            try:
                writing.finish()
            except BaseException as error:
                handle._error = writing.undo(error)
            finally:
                handle._ended.set()

        try:
            threading.Thread(target=run, name="af-checkpoint", daemon=False).start()
        except RuntimeError:  # no more threads: then here
            run()
        self._in_flight = handle
        return handle

    def wait(self):
        """Waits for a save in the background; raises what ended it if nobody has been told."""
        handle, self._in_flight = self._in_flight, None
        # A process forked in the middle of a save has the handle, but not the thread.
        if handle is None or self._pid != os.getpid():
            return
        handle._ended.wait()
        if not handle._told:
            handle.wait()

    def newest(self):
        """(path, step, metadata) of the good checkpoint with the highest step, or None. Reads every
        byte of it. Warns of each one that it passes over, with the reason; metadata is {} for one
        that the C++ library wrote. Raises CheckpointError when the directory cannot be read."""
        for _ in range(5):
            vanished = False
            for step, path in self._list():
                fault = fault_of_checkpoint(path, step)
                if fault is None:
                    return path, step, _metadata_of(path)
                if not os.path.lexists(path):
                    vanished = True  # another rank's save has removed it meanwhile: look again
                else:
                    self._warn(f"checkpoint {path} is skipped: {fault}")
            if not vanished:
                break
        return None

    def _list(self):
        """[(step, path)], highest step first; of one step, the one under its own name first."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoints in {self.root}: {error.strerror}") from error
        found = []
        for name in names:
            step = _step_of(name[len(_REPLACED):] if name.startswith(_REPLACED) else name)
            if step is not None:
                found.append((step, not name.startswith(_REPLACED), os.path.join(self.root, name)))
        return [(step, path) for step, _, path in sorted(found, reverse=True)]

    def _prune(self, newest):
        # Sizes only: to read every byte of the older ones at each save would be dear. What has no
        # manifest is not ours to remove, whatever its name. Later ones than `newest` are somebody
        # else's decision: a training that was set back leaves them.
        if self.keep is None:
            return
        good, useless = [], []
        for step, path in self._list():
            if step > newest or not os.path.exists(os.path.join(path, MANIFEST)):
                continue
            (useless if fault_of_checkpoint(path, step, checksums=False) else good).append(path)
        best = good
        if self._score is not None:
            best = sorted(good, key=self._value, reverse=True)  # of equal ones the newer come first
        stay = {*good[:1], *best[:self.keep]}
        for path in useless + [path for path in good if path not in stay]:
            _remove(path)

    def _value(self, path):
        value = self._score(_metadata_of(path))
        return float("-inf") if value is None or value != value else value

    def _remove_leftovers(self):
        """Temporary directories of writers that are dead; one that may live is left alone."""
        for name in os.listdir(self.root):
            path = os.path.join(self.root, name)
            if name.startswith(_SAVING) and name.endswith(".lock"):
                _remove_if_dead(path)
            elif name.startswith(_REMOVING):
                shutil.rmtree(path, ignore_errors=True)
            elif name.startswith(_REPLACED):
                step = _step_of(name[len(_REPLACED):])
                if step is not None and not fault_of_checkpoint(os.path.join(self.root, _name_of(step)), step):
                    _remove(path)


class _Writing:
    """One save: take() copies, finish() makes it durable and gives it its name, undo() cleans up."""

    def __init__(self, store, step):
        try:
            step = operator.index(step)
        except TypeError:
            pass
        if not isinstance(step, int) or not 0 <= step < 10**12:
            raise CheckpointError(f"checkpoint in {store.root}: the step is {step!r}, not a number from 0 to 10^12")
        self._store = store
        self._step = step
        self.final = os.path.join(store.root, _name_of(step))
        self._lock = None  # (path, descriptor)
        self._directory = None
        self._files = {}  # name: {"bytes", "crc32"}; None where the sum has not been made yet
        self._taken = []

    def take(self, source_dir, metadata, move):
        text = _metadata_text(metadata, self.final)
        _make_directories(self._store.root)
        self._store._remove_leftovers()
        self._lock = _new_lock(self._store.root, self._step)
        self._directory = self._lock[0][:-len(".lock")]
        os.mkdir(self._directory)
        for name, path in _files_below(os.fspath(source_dir)):
            if name in (MANIFEST, METADATA):
                _check_ours(path, name)
                continue
            target = os.path.join(self._directory, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if move and _link(path, target):
                self._taken.append(path)
                self._files[name] = None
            else:
                self._files[name] = _copy(path, target)
                if move:
                    self._taken.append(path)
        self._files[METADATA] = _write(os.path.join(self._directory, METADATA), text)

    def finish(self):
        for name, found in self._files.items():
            if found is None:
                self._files[name] = _sum_of(os.path.join(self._directory, name))
        manifest = {"files": self._files, "format": 1, "step": self._step}
        text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
        _write(os.path.join(self._directory, MANIFEST), text.encode())
        _fsync_tree(self._directory)
        _move_into_place(self._directory, self.final, self._step)
        shutil.rmtree(self._directory, ignore_errors=True)  # what an exchange left there
        _fsync(self._store.root)
        self._release()
        self.give_away()
        try:
            self._store._prune(self._step)
        except Exception as error:  # the checkpoint is good all the same; a score may raise anything
            self._store._warn(f"cannot remove old checkpoints in {self._store.root}: {error}")
        return self.final

    def undo(self, error):
        """Removes what there is of it; the exception to raise for `error`."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._release()
        if not isinstance(error, OSError):
            return error
        failure = CheckpointError(_explain(error, self.final, self._store.root))
        failure.__cause__ = error
        return failure

    def give_away(self):
        """Takes the files that have been moved from where they were."""
        for path in self._taken:
            try:
                os.unlink(path)
            except OSError:
                pass  # the person's own clean-up was quicker
        self._taken = []

    def _release(self):
        if self._lock is not None:
            path, descriptor = self._lock
            self._lock = None
            try:
                os.unlink(path)
            except OSError:
                pass
            os.close(descriptor)


def fault_of_checkpoint(path, step, checksums=True):
    """Why the directory is not a good checkpoint of `step`, in words; None when it is one.
    `checksums=False` compares sizes only."""
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
    except FileNotFoundError:
        return f"it has no {MANIFEST}"
    except OSError as error:
        return f"cannot read its {MANIFEST}: {error.strerror}"
    except ValueError as error:
        return f"its {MANIFEST} is not a manifest: {error}"
    try:
        if manifest["format"] != 1:
            return f"its manifest has format {manifest['format']}: a newer af wrote it"
        if manifest["step"] != step:
            return f"its manifest is of step {manifest['step']}"
        for name, entry in manifest["files"].items():
            size, crc = entry["bytes"], entry["crc32"]
            if os.path.isabs(name) or ".." in name.split("/"):
                return f"its manifest names {name}, which lies outside"
            file = os.path.join(path, name)
            found = os.stat(file).st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
            if checksums:
                summed = _sum_of(file)["crc32"]
                if summed != crc:
                    return f"{name} has the CRC-32 {summed} instead of {crc}"
    except OSError as error:
        return f"{name}: {error.strerror}"
    except (KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} is not a manifest: {type(error).__name__}: {error}"
    return None


# Names, manifest, metadata


def _name_of(step):
    return f"step-{step:012d}"


def _step_of(name):
    match = re.fullmatch(r"step-([0-9]{12,18})", name)
    return int(match[1]) if match and _name_of(int(match[1])) == name else None


def _metadata_text(metadata, final):
    def plain(value):  # numbers of torch and NumPy
        if hasattr(value, "item"):
            return value.item()
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON")

    try:
        return (json.dumps({"format": 1, "metadata": metadata or {}}, indent=2, sort_keys=True, default=plain)
                + "\n").encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"cannot save the checkpoint {final}: what is reported with it: {error}") from error


def _metadata_of(path):
    try:
        with open(os.path.join(path, METADATA), encoding="utf-8") as file:
            return json.load(file)["metadata"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _check_ours(path, name):
    """The person's directory may be an older checkpoint; a file of their own under our name may not
    vanish without a word."""
    try:
        with open(path, encoding="utf-8") as file:
            ours = json.load(file)["format"] == 1
    except (ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise CheckpointError(f"cannot save {path}: the name {name} is kept for af: give the file another one")


# Files


def _files_below(source):
    """(name, path) of every file below `source`. Links to files count as the file; what else is no
    plain file or directory is an error."""
    if not os.path.isdir(source):
        raise CheckpointError(f"cannot save the checkpoint directory {source}: it is not a directory")
    found = []

    def fail(error):
        raise error

    for folder, folders, files in os.walk(source, onerror=fail):
        for name in folders:
            if os.path.islink(os.path.join(folder, name)):
                raise CheckpointError(
                    f"cannot save {os.path.join(folder, name)}: it is a link to a directory: copy what it holds")
        for file in files:
            path = os.path.join(folder, file)
            name = os.path.relpath(path, source)
            try:
                name.encode("utf-8")
            except UnicodeEncodeError:
                raise CheckpointError(f"cannot save {path!r}: its name is not UTF-8") from None
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise CheckpointError(f"cannot save {path}: it is not a plain file")
            found.append((name, path))
    return sorted(found)


def _remove(path):
    """Under another name first: a removal cut short must not leave half a checkpoint."""
    aside = os.path.join(os.path.dirname(path), f"{_REMOVING}{os.path.basename(path)}-{os.getpid()}-{next(_numbers)}")
    try:
        os.rename(path, aside)
    except OSError:
        return  # another process was quicker, or it is another person's
    shutil.rmtree(aside, ignore_errors=True)


def _write_all(descriptor, data):
    view = memoryview(data)
    while len(view):
        view = view[os.write(descriptor, view):]


def _create(path):
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _write(path, data):
    descriptor = _create(path)
    try:
        _write_all(descriptor, data)
    finally:
        os.close(descriptor)  # quotas of network file systems are often reported here only
    return {"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}


def _copy(source, target):
    size, crc = 0, 0
    with open(source, "rb", buffering=0) as reading:
        descriptor = _create(target)
        try:
            while True:
                data = reading.read(_CHUNK)
                if not data:
                    break
                size += len(data)
                crc = zlib.crc32(data, crc)
                _write_all(descriptor, data)
        finally:
            os.close(descriptor)
    return {"bytes": size, "crc32": f"{crc:08x}"}


def _sum_of(path):
    size, crc = 0, 0
    with open(path, "rb", buffering=0) as file:
        while True:
            data = file.read(_CHUNK)
            if not data:
                return {"bytes": size, "crc32": f"{crc:08x}"}
            size += len(data)
            crc = zlib.crc32(data, crc)


def _link(source, target):
    """A second name rather than a rename: until the save is complete the source keeps the first."""
    try:
        os.link(source, target, follow_symlinks=True)
    except (OSError, NotImplementedError):  # another file system, or one without links
        return False
    if os.path.islink(target):  # where the system cannot follow
        os.unlink(target)
        return False
    return True


def _fsync(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_tree(directory):
    for folder, _, files in os.walk(directory, topdown=False):
        for file in files:
            _fsync(os.path.join(folder, file))
        _fsync(folder)


def _make_directories(path):
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make_directories(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    _fsync(parent)


def _exchange(one, other):
    """Swaps two names in one step (Linux, most local file systems); False where that cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), ctypes.c_uint(swap)) == 0


def _move_into_place(fresh, final, step):
    try:
        os.rename(fresh, final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if _exchange(fresh, final):
            return
        # One name after the other. newest() also looks at the one that is set aside, so that a kill
        # in between loses nothing.
        aside = os.path.join(os.path.dirname(final), _REPLACED + _name_of(step))
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(final, aside)
        try:
            os.rename(fresh, final)
        except OSError:
            os.rename(aside, final)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _explain(error, final, root):
    what = f"cannot save the checkpoint {final}"
    kept = "older checkpoints are as they were"
    if error.errno == errno.EDQUOT:
        return f"{what}: your quota on the file system of {root} is used up: remove files there or save elsewhere; {kept}"
    if error.errno == errno.ENOSPC:
        full = f"the file system of {root} is full"
        try:
            of = os.statvfs(root)
            full += f" ({_size(of.f_bavail * of.f_frsize)} free of {_size(of.f_blocks * of.f_frsize)}"
            full += ", no room for more files)" if of.f_files and not of.f_favail else ")"
        except OSError:
            pass
        return f"{what}: {full}: remove files there or save elsewhere; {kept}"
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{what}: {where}{error.strerror or error}; {kept}"


def _size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


# Who is writing
#
# The lock file says who: host and pid namespace, pid, start time of the process. A flock on it is
# held by the writer and goes when it dies, however it does.


def _owner(pid):
    """What tells a process from a later one of the same number; None when there is no such process."""
    try:
        fields = _text_of(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{pid} {fields[19]}"


def _here():
    """Where process numbers mean what they mean here: host, its start, pid namespace."""
    try:
        return f"{socket.gethostname()} {_text_of('/proc/sys/kernel/random/boot_id')} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _flock(descriptor):
    """True: it is ours. False: another process holds it. None: there are no locks here."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None


def _same_file(path, descriptor):
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _new_lock(root, step):
    host = re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())
    while True:
        name = f"{_SAVING}{_name_of(step)}-{host}-{os.getpid()}-{next(_numbers)}.lock"
        path = os.path.join(root, name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue  # of a dead process of the same number on a host of the same name
        try:
            locked = _flock(descriptor)
            # Somebody who cleans up may have taken the file for a dead writer's before it was locked.
            if locked is not False and _same_file(path, descriptor):
                _write_all(descriptor, f"{_here()}\n{_owner(os.getpid())}\n".encode())
                return path, descriptor
        except BaseException:
            os.unlink(path)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_if_dead(lock):
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return  # its writer has just ended, or it is another person's
    try:
        locked = _flock(descriptor)
        if locked is False or not _same_file(lock, descriptor):
            return
        where, _, owner = os.read(descriptor, 4096).decode(errors="replace").strip().partition("\n")
        directory = lock[:-len(".lock")]
        if where == _here():
            # With locks, a free one says it all: the process may live on and save no more.
            dead = locked or _owner(owner.partition(" ")[0]) != owner
        else:
            dead = bool(locked) and time.time() - _last_written(directory, lock) > _FOREIGN_SILENCE_S
        if dead:
            shutil.rmtree(directory, ignore_errors=True)
            os.unlink(lock)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _last_written(directory, lock):
    newest = 0.0
    paths = [lock, directory]
    for folder, folders, files in os.walk(directory):
        paths += [os.path.join(folder, name) for name in folders + files]
    for path in paths:
        try:
            newest = max(newest, os.lstat(path).st_mtime)
        except OSError:
            pass
    return newest
