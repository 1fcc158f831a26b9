# SPDX-License-Identifier: Apache-2.0
"""The committed data set is what its script writes: nobody edited the file by hand."""

import pathlib
import subprocess

import h5py
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "examples/data/digits.h5"
# The versions that wrote the committed file: others compress the same numbers into other bytes.
WRITTEN_BY = ("3.7.0", "1.10.8")


def test_script_reproduces_the_committed_file(tmp_path):
    fresh = tmp_path / "digits.h5"
    subprocess.run([ROOT / "scripts/make-digits-h5", fresh], check=True)

    with h5py.File(COMMITTED) as old, h5py.File(fresh) as new:
        assert dict(old.attrs) == dict(new.attrs)
        for name in ("train/images", "train/labels", "test/images", "test/labels"):
            assert old[name].dtype == new[name].dtype
            np.testing.assert_array_equal(old[name][:], new[name][:])
    if (h5py.version.version, h5py.version.hdf5_version) == WRITTEN_BY:
        assert fresh.read_bytes() == COMMITTED.read_bytes()


def test_file_names_its_source_and_licence():
    with h5py.File(COMMITTED) as file:
        assert "10.24432/C50P49" in file.attrs["source"]
        assert "CC BY 4.0" in file.attrs["license"]
        assert file["train/images"].shape == (1437, 64)
        assert file["test/images"].shape == (360, 64)
