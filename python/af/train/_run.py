# SPDX-License-Identifier: Apache-2.0
"""A run: reports, checkpoints and the snapshot that is taken when the whole job has to end."""

import os
import shutil
import tempfile

from .. import _native, _world
from .._native import CommunicatorError
from . import _progress
from ._checkpoint import Checkpoint
from ._session import now, say
from ._storage import CheckpointError, CheckpointStore

# Beside the checkpoints. A later start of the run goes on from it if it belongs to the checkpoint
# that the program starts from.
SNAPSHOTS = "af-snapshot"


class Run:
    def __init__(self, session, config, loop_config=None, use_gpu=False, resume_from=None):
        self.session = session
        self.config = config
        self.directory = config.directory()
        self.use_gpu = use_gpu
        self.quiet = config.verbose == 0 or os.environ.get("AF_PROGRESS") == "0"
        self.total = _progress.total_epochs(loop_config)
        self.history = []  # metrics of each report on this rank
        self.best = []  # (Checkpoint, metrics) of each report with one
        self.checkpoint = None  # the newest, once a report has saved one
        self._resume_from = resume_from
        self._given = None  # path that get_checkpoint() gave at the start
        self._found = ()  # newest() when it was first asked: None or (path, step, metadata)
        self._number = 0  # of the last checkpoint
        self._last = (None, now())  # epoch and time of the last report
        self._pace = None
        keep = config.checkpoint_config
        score = None
        if keep.checkpoint_score_attribute:
            sign = 1 if keep.checkpoint_score_order == "max" else -1

            def score(metadata):
                value = metadata.get("metrics", {}).get(keep.checkpoint_score_attribute)
                return sign * value if isinstance(value, (int, float)) else None

        self._store = CheckpointStore(self.directory, keep.num_to_keep, score=score)

    # --- Starting from a checkpoint

    def get_checkpoint(self):
        session = self.session
        if self.checkpoint is not None:
            return self.checkpoint
        session.world  # a rank that joins must not look before the others wait for it
        found = self._newest()
        if found is None:
            return self._resume_from
        path, _, metadata = found
        if self._given is None and not session.has_state and session._met is None:
            self._given = path
            session.steps = metadata.get("steps", 0)
            session.reports = session.reports_known = metadata.get("reports", 0)
            session.restore_loaders(metadata.get("loaders", {}))
            for number, metrics in enumerate(metadata.get("history", [])):
                if number >= len(self.history):
                    self.history.append(metrics)
        return Checkpoint(path)

    def _newest(self):
        if self._found == ():
            self._found = self._store.newest()
            if self._found is not None:
                self._number = self._found[1]
        return self._found

    # --- Reports

    def report(self, metrics, checkpoint=None, name=None):
        """A barrier. On every rank; any of them may have a checkpoint."""
        session = self.session
        if not isinstance(metrics, dict):
            raise TypeError(f"report(metrics={metrics!r}): a dict is needed")
        if session.catching_up and session.reports < session.reports_known:
            session.reports += 1  # the others have done it
            return
        session.catching_up = False  # they are in this one
        number, error = session.reports, None
        saved = {}  # outlives a failure: a checkpoint that is on disk is not written again
        while True:
            try:
                session.enter(state=session.models is not None, error=error)
                if session.reports_known <= number:
                    self._report_once(metrics, checkpoint, saved)
                break
            except CommunicatorError as failure:
                if failure.kind == _native.TIMEOUT and not session.world.elastic:
                    raise CommunicatorError(
                        f"report() waits for all ranks, each has to call it: {failure}",
                        failure.kind,
                        failure.ranks,
                    ) from None
                if not session.recoverable(failure):
                    raise
                error = failure
        session.reports = session.reports_known = number + 1
        metrics = _world.plain(metrics)
        self.history.append(metrics)
        if saved.get("path"):
            self.checkpoint = Checkpoint(saved["path"])
            self.best.append((self.checkpoint, metrics))
        if session.world.rank == 0:
            self._tell(metrics)
        session.between_steps()

    def _report_once(self, metrics, checkpoint, saved):
        session, world = self.session, self.session.world
        mine = checkpoint is not None or "path" in saved
        holders = [r for r, row in enumerate(session._gather([int(mine)])) if row[0]]
        failed = 0
        if len(holders) > 1:
            failed = self._save_parts(checkpoint, metrics, saved, holders)
        elif holders == [world.rank] and "path" not in saved:
            failed = self._save(checkpoint.path, metrics, saved)
        at_checkpoint = world.flags(True) if holders else 0
        at_once = world.flags(False)
        change, change_here, save, failures, length = session.sum(
            [
                at_once & _native.FLAG_CHANGE,
                at_checkpoint & _native.FLAG_CHANGE,
                at_once & _native.FLAG_SAVE,
                failed,
                len(os.fsencode(saved.get("path", ""))) if holders[:1] == [world.rank] else 0,
            ]
        )
        if length:
            path = os.fsencode(saved.get("path", ""))
            saved["path"] = os.fsdecode(session.broadcast_bytes(path, int(length), holders[0]))
        session.note_flags(change or (change_here and holders and not failures), save)

    def _save(self, source, metrics, saved):
        """0 if it is on disk. A full disk costs this checkpoint, not the training."""
        session = self.session
        self._newest()
        number = max(session.steps, self._number + 1)
        metrics = _world.plain(metrics)
        metadata = {
            "steps": session.steps,
            "reports": session.reports + 1,
            "world_size": session.world.size,
            "loaders": {
                str(n): l.dealing.as_json(session.world.size) for n, l in session._numbered_loaders()
            },
            "metrics": metrics,
            "history": self.history[-1000:] + [metrics],
        }
        began = now()
        try:
            saved["path"] = self._store.save(number, source, metadata)
        except (CheckpointError, OSError) as error:
            say(f"{error}")
            return 1
        self._number = number
        self.remove_snapshots()  # they belong to a checkpoint before
        session.world.send(
            {
                "op": "checkpoint",
                "path": saved["path"],
                "step": session.steps,
                "seconds": round(now() - began, 3),
            }
        )
        return 0

    def _save_parts(self, checkpoint, metrics, saved, holders):
        """Several ranks have a part each: one directory with the files of all."""
        session = self.session
        rank = session.world.rank
        parts = os.path.join(self.directory, f".parts-{session.reports:06d}")
        failed = 0
        if checkpoint is not None:
            try:
                shutil.copytree(checkpoint.path, parts, dirs_exist_ok=True)
            except (OSError, shutil.Error) as error:
                say(f"part of a checkpoint cannot be copied to {parts}: {error}")
                failed = 1
        failed = session.sum([failed])[0]
        if rank == holders[0]:
            if not failed and "path" not in saved:
                failed = self._save(parts, metrics, saved)
            shutil.rmtree(parts, ignore_errors=True)
        return failed

    def epoch(self):
        """Completed epochs of the loader that is furthest; None without one."""
        epochs = [loader.dealing.epoch for loader in self.session._living_loaders()]
        return max(epochs) if epochs else None

    def _tell(self, metrics):
        session = self.session
        epoch = metrics.get("epoch", self.epoch())
        session.world.send(
            {"op": "report", "step": session.steps, "epoch": epoch, "metrics": metrics}
        )
        done, time = self.epoch(), now()
        last, since = self._last
        if done is not None and last is not None and done > last:
            pace = (time - since) / (done - last)
            self._pace = pace if self._pace is None else 0.5 * (self._pace + pace)
        if last is None or done != last:
            self._last = (done, time)
        if not self.quiet:
            say(
                _progress.line(
                    done, self.total, metrics, session.world.size, self.use_gpu, self._pace
                )
            )

    # --- The snapshot

    def _snapshots(self):
        return CheckpointStore(os.path.join(self.directory, SNAPSHOTS), keep=1)

    def save_snapshot(self, session):
        """On rank 0, when the whole job ends: no step is lost. Returns its path, or "" """
        if session.models is None:
            return ""
        base = self.checkpoint.path if self.checkpoint is not None else self._given
        metadata = {
            "steps": session.steps,
            "reports": session.reports,
            "base": os.path.basename(base) if base else None,
            "stepped": session.stepped,
            "loaders": {
                str(n): l.dealing.as_json(session.world.size) for n, l in session._numbered_loaders()
            },
        }
        try:
            with tempfile.TemporaryDirectory(prefix="af-") as directory:
                session.models.write(os.path.join(directory, "snapshot.pt"))
                path = self._snapshots().save(session.steps, directory, metadata)
        except (CheckpointError, OSError) as error:
            say(f"the state of step {session.steps} could not be saved: {error}")
            return ""
        say(f"step {session.steps} is saved in {path}; the next start goes on from there")
        return path

    def fitting_snapshot(self, session):
        """What a snapshot tells about the start, if it belongs to where the program starts."""
        if not os.path.isdir(os.path.join(self.directory, SNAPSHOTS)) or session.models is None:
            return None
        found = self._snapshots().newest()
        if found is None:
            return None
        path, step, metadata = found
        base = os.path.basename(self._given) if self._given else None
        reason = None
        if metadata.get("base") != base:
            reason = f"it follows {metadata.get('base') or 'no checkpoint'}, not {base or 'a start from none'}"
            if base is not None and metadata.get("steps", 0) < session.steps:
                return None  # an old one: the checkpoint is newer
        else:
            own = {n: l.dealing.epoch for n, l in session._numbered_loaders()}
            for number, state in metadata["loaders"].items():
                if int(number) in own and state["epoch"] != own[int(number)]:
                    reason = f"it is of epoch {state['epoch']}, the program begins with {own[int(number)]}"
        if reason:
            say(f"the snapshot {path} is not used: {reason}")
            return None
        say(f"goes on from step {metadata['steps']} of {path}")
        return {
            "snapshot": os.path.join(path, "snapshot.pt"),
            "steps": metadata["steps"],
            "reports": metadata["reports"],
            "stepped": metadata["stepped"],
            "loaders": metadata["loaders"],
        }

    def remove_snapshots(self):
        shutil.rmtree(os.path.join(self.directory, SNAPSHOTS), ignore_errors=True)
