# SPDX-License-Identifier: Apache-2.0
"""Checkpoint: a directory that somebody has saved."""

import contextlib
import json
import os
import shutil
import tempfile

_METADATA = ".metadata.json"


class Checkpoint:
    """A directory with what a training needs to go on. ``path`` says where it is."""

    def __init__(self, path, filesystem=None):
        if filesystem is not None or "://" in str(path):
            raise ValueError(f"{path}: af's checkpoints are directories that all nodes see")
        self.path = os.fspath(path)
        self.filesystem = None

    def __repr__(self):
        return f"Checkpoint(path={self.path!r})"

    def __eq__(self, other):
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self):
        return hash(self.path)

    def __fspath__(self):
        raise TypeError("use checkpoint.as_directory() or checkpoint.to_directory() for its path")

    @classmethod
    def from_directory(cls, path):
        """Of the files in `path`. report() copies them before it returns."""
        return cls(path)

    @contextlib.contextmanager
    def as_directory(self):
        """The directory itself, to read from."""
        yield self.path

    def to_directory(self, path=None):
        """A copy in `path`, or in a new temporary directory; returns where it is."""
        target = os.path.expanduser(os.fspath(path)) if path else tempfile.mkdtemp(prefix="af-")
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    def get_metadata(self):
        try:
            with open(os.path.join(self.path, _METADATA)) as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def set_metadata(self, metadata):
        with open(os.path.join(self.path, _METADATA), "w") as file:
            json.dump(metadata, file)

    def update_metadata(self, metadata):
        self.set_metadata({**self.get_metadata(), **metadata})
