# SPDX-License-Identifier: Apache-2.0
"""A DataLoader whose rows are dealt over the ranks of a world that may change."""

import copy

import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.dataloader import default_collate

from .._dealing import Dealing
from .._session import say, session

SEED = 0


def permutation(count, epoch):
    """The order of an epoch: of the seed and the epoch alone, so the same at every world size."""
    generator = torch.Generator()
    generator.manual_seed((SEED << 32) + epoch)
    return torch.randperm(count, generator=generator)


class _EpochSampler:
    """In place of the loader's sampler, for programs that call `loader.sampler.set_epoch(epoch)`."""

    def __init__(self, loader):
        self._loader = loader

    def set_epoch(self, epoch):
        """Nothing to do: every epoch has an order of its own."""

    def __len__(self):
        return self._loader.dealing.length()

    def __iter__(self):
        order = self._loader.dealing.order()
        return iter(order.tolist() if hasattr(order, "tolist") else order)


class DealtLoader(DataLoader):
    """Iterating gives this rank's share of each step. One iterator at a time.

    It has the attributes of the DataLoader that it was made from. An iterator goes on through
    changes of the world: what worker processes had read ahead for the old world is read anew.
    """

    def __init__(self, loader, per_rank, device):
        # As a copy: DataLoader's own __init__ would make samplers again, and forbids changes.
        self.__dict__.update(loader.__dict__)
        own = self.__dict__
        own["_source"] = loader
        own["_order"] = _order_maker(loader)
        own["dealing"] = Dealing(own["_order"], loader.batch_size, loader.drop_last, per_rank)
        own["_device"] = device
        own["_running"] = None  # marker of the iterator that is open
        own["_catch_up"] = 0
        own["version"] = 0  # of the dealing; another one makes what was read ahead useless
        own["sampler"] = _EpochSampler(self)
        own["_inner"] = None
        own["_iterator"] = None
        session().add_loader(self)

    def __len__(self):
        return self.dealing.steps(session().world.size)

    # --- For the session

    def adopt(self, state, joins):
        """`joins`: this rank is new in a training that runs; what it lacks of it is passed over."""
        before = self.dealing.epoch
        self.dealing.adopt(state)
        own = self.__dict__
        own["version"] += 1
        if joins and self.dealing.epoch > before:
            own["_catch_up"] = self.dealing.epoch - before

    def weight(self, share):
        """(rows of this rank, rows of all) of the step in progress."""
        deal = self.dealing.deal
        return deal.share_size(share), deal.expected()

    # --- Iterating

    def __iter__(self):
        current, own = session(), self.__dict__
        current.enter()
        marker = own["_running"] = object()
        if self._catch_up > 0:
            # Epochs that the others have done: one batch of each, of which nothing is kept, so that
            # what the program expects of an epoch is there.
            own["_catch_up"] -= 1
            current.catching_up, current.weight = True, (0, 1)
            return self._one_of_no_weight()
        current.catching_up = False
        return self._epoch(current, marker)

    def _one_of_no_weight(self):
        yield self._to_device(self._collate(self.dealing.rows(0, 1)))

    def _epoch(self, current, marker):
        dealing = self.dealing
        epoch = dealing.epoch
        try:
            while True:
                current.between_steps()
                current.enter()
                if dealing.epoch != epoch:
                    break  # the others are in the next one: this one is over
                world = current.world
                fresh = not (dealing.in_progress() and not dealing.taken)
                rows = dealing.begin(world.rank, world.size, world.generation)
                if rows is None:
                    break
                deal = dealing.deal
                current.weight = (len(rows), deal.expected())
                yield self._to_device(self._fetch(rows, fresh))
        finally:
            if dealing.epoch == epoch:
                # Also if the program broke off. But not if it is about to be left for another
                # iterator that begins the next epoch by itself.
                dealing.begin_epoch(epoch + 1)
                self.__dict__["version"] += 1
            if self._running is marker:
                self.__dict__["_running"] = None

    def _fetch(self, rows, fresh):
        if not self.num_workers:
            return self._collate(rows or self.dealing.rows(0, 1))
        if self._iterator is None or self._iterator[0] != self.version or not fresh:
            self._read_ahead(rows)
        return next(self._iterator[1])

    def _collate(self, rows):
        dataset, collate = self.dataset, self.collate_fn
        if type(dataset) is TensorDataset and collate is default_collate:
            index = torch.as_tensor(rows)
            batch = [tensor[index] for tensor in dataset.tensors]
        elif hasattr(dataset, "__getitems__"):
            batch = collate(dataset.__getitems__(rows))
        else:
            batch = collate([dataset[row] for row in rows])
        if self.pin_memory and torch.cuda.is_available():
            batch = torch.utils.data._utils.pin_memory.pin_memory(batch)
        return batch

    def _read_ahead(self, rows):
        """Worker processes that read `rows` first and then what will be dealt to this rank."""
        own, world = self.__dict__, session().world
        ahead = copy.copy(self.dealing)
        ahead.late, ahead.deal = list(ahead.late), None
        ghost = self.dealing.rows(0, 1)

        def plan():
            found = rows
            while found is not None:
                yield found or ghost
                found = ahead.begin(world.rank, world.size, world.generation)

        if own["_inner"] is None:
            source = self._source
            options = {
                "num_workers": source.num_workers,
                "collate_fn": source.collate_fn,
                "pin_memory": source.pin_memory,
                "timeout": source.timeout,
                "worker_init_fn": source.worker_init_fn,
                "multiprocessing_context": source.multiprocessing_context,
                "generator": source.generator,
                "persistent_workers": source.persistent_workers,
            }
            if source.prefetch_factor is not None:
                options["prefetch_factor"] = source.prefetch_factor
            batches = _Batches()
            own["_inner"] = (DataLoader(source.dataset, batch_sampler=batches, **options), batches)
        inner, batches = own["_inner"]
        batches.plan = plan
        own["_iterator"] = None  # ends the workers of the old one, if they do not stay
        own["_iterator"] = (self.version, iter(inner))

    def _to_device(self, batch):
        return batch if self._device is None else moved(batch, self._device)


class _Batches:
    """A batch sampler that asks for its plan when it is iterated."""

    plan = None

    def __iter__(self):
        return self.plan()


def _order_maker(loader):
    sampler, count = loader.sampler, len(loader.dataset)
    if isinstance(sampler, SequentialSampler):
        return lambda epoch: range(count)
    if isinstance(sampler, DistributedSampler) and not sampler.shuffle:
        return lambda epoch: range(count)
    if isinstance(sampler, SubsetRandomSampler):
        chosen = torch.as_tensor(list(sampler.indices))
        return lambda epoch: chosen[permutation(len(chosen), epoch)]
    if not isinstance(sampler, (RandomSampler, DistributedSampler)):
        say(
            f"prepare_data_loader: the order of {type(sampler).__name__} is replaced by a random "
            "one; add_dist_sampler=False keeps it, and then every rank reads all rows"
        )
    elif isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != count):
        say("prepare_data_loader: every row comes once in an epoch, without replacement")
    return lambda epoch: permutation(count, epoch)


class _Moving(DataLoader):
    """Any loader, with its batches moved to a device."""

    def __init__(self, loader, device):
        self.__dict__.update(loader.__dict__)
        self.__dict__["_source"], self.__dict__["_device"] = loader, device

    def __len__(self):
        return len(self._source)

    def __iter__(self):
        for batch in self._source:
            yield moved(batch, self._device)


def moved(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: moved(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)([moved(value, device) for value in batch])
    if hasattr(batch, "to"):
        return batch.to(device)
    return batch


def prepare(loader, add_dist_sampler, device, batch):
    if batch not in ("global", "rank"):
        raise ValueError(f'batch={batch!r}: "global" or "rank"')
    dealt = add_dist_sampler
    if isinstance(loader.dataset, IterableDataset):
        say("prepare_data_loader: an IterableDataset cannot be dealt: every rank reads all of it")
        dealt = False
    elif add_dist_sampler and loader.batch_size is None:
        say("prepare_data_loader: a loader with its own batches cannot be dealt: give batch_size")
        dealt = False
    if dealt:
        return DealtLoader(loader, batch == "rank", device)
    return loader if device is None else _Moving(loader, device)
