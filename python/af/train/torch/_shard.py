# SPDX-License-Identifier: Apache-2.0
"""A dataset in memory, dealt over the ranks: what get_dataset_shard() gives."""

import torch
from torch.utils.data import DataLoader, Dataset

from . import _device
from ._loader import DealtLoader


class _Columns(Dataset):
    """Rows of columns of equal length; many at once."""

    def __init__(self, columns):
        self.columns = columns
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of a dataset need the same length: {lengths}")
        self.count = next(iter(lengths.values()), 0)

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return {name: column[row] for name, column in self.columns.items()}

    def __getitems__(self, rows):
        index = torch.as_tensor(rows)
        return {
            name: column[index] if isinstance(column, torch.Tensor) else [column[r] for r in rows]
            for name, column in self.columns.items()
        }


def _tensor(column):
    try:
        return torch.as_tensor(column)
    except (TypeError, ValueError, RuntimeError):
        return list(column)  # texts


def columns_of(data, name):
    """A dict of columns from what a person has in memory."""
    if hasattr(data, "to_pydict") or hasattr(data, "column_names"):  # a table of pyarrow
        return {c: _tensor(data.column(c).to_numpy()) for c in data.column_names}
    if hasattr(data, "to_numpy") and hasattr(data, "columns"):  # a frame of pandas
        return {str(c): _tensor(data[c].to_numpy()) for c in data.columns}
    if isinstance(data, dict):
        return {str(c): _tensor(column) for c, column in data.items()}
    if isinstance(data, (list, tuple)) and data and isinstance(data[0], dict):
        return {str(c): _tensor([row[c] for row in data]) for c in data[0]}
    if isinstance(data, (list, tuple)):
        return {"item": _tensor(data)}
    raise NotImplementedError(
        f"dataset {name!r} is a {type(data).__name__}: give a dict of arrays, a list of dicts or "
        "numbers, a table of pyarrow or a frame of pandas. Data in files that do not fit in memory "
        "are not there yet: use a DataLoader with prepare_data_loader"
    )


def _all(batch):
    return batch


class DataShard:
    """This rank's share of the rows. Each iteration is an epoch over all rows, dealt anew."""

    def __init__(self, data, name):
        self._data, self._name = data, name
        self._loaders = {}
        self._columns = None

    def _dataset(self):
        if self._columns is None:
            self._columns = _Columns(columns_of(self._data, self._name))
        return self._columns

    def count(self):
        return len(self._dataset())

    def iter_torch_batches(
        self,
        *,
        prefetch_batches=1,
        batch_size=256,
        dtypes=None,
        device="auto",
        collate_fn=None,
        drop_last=False,
        local_shuffle_buffer_size=None,
        local_shuffle_seed=None,
        pin_memory=False,
    ):
        """Batches as dicts of tensors by column. `batch_size` rows over all ranks.

        The rows come in their order; with a `local_shuffle_buffer_size` in a random one.
        """
        where = _device.get_device() if device == "auto" else torch.device(device)
        shuffle = bool(local_shuffle_buffer_size)
        key = (batch_size, drop_last, shuffle)
        if key not in self._loaders:
            base = DataLoader(
                self._dataset(), batch_size, shuffle=shuffle, drop_last=drop_last, collate_fn=_all
            )
            self._loaders[key] = DealtLoader(base, per_rank=False, device=None)
        return _Batches(self._loaders[key], where, dtypes, collate_fn)


class _Batches:
    def __init__(self, loader, device, dtypes, collate_fn):
        self._loader, self._device = loader, device
        self._dtypes, self._collate = dtypes, collate_fn

    def __iter__(self):
        for batch in self._loader:
            if self._collate is not None:
                yield self._collate(batch)
                continue
            found = {}
            for name, column in batch.items():
                if isinstance(column, torch.Tensor):
                    dtype = self._dtypes.get(name) if isinstance(self._dtypes, dict) else self._dtypes
                    column = column.to(self._device, dtype or column.dtype)
                found[name] = column
            yield found
