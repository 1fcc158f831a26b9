# SPDX-License-Identifier: Apache-2.0
"""Gradients of a model in flat memory, reduced out of place.

A bucket holds the gradients of all parameters of one type and device in two flat buffers. The local
gradients are in one of them, the average comes into the other, and after the reduction `p.grad` are
views of that. So the local gradients stay as they are until the step is over on every rank, and the
reduction can be repeated in another world. In host memory the buffers come from the communicator,
which reduces them without a copy.

Behind the gradients lie, in the bucket that carries them, [rows, change, save] of this step, and a 1
for each parameter that has a gradient.
"""

import ctypes

import torch

_EXTRA = 3
_copy_all = getattr(torch, "_foreach_copy_", None)  # from torch 2.1 on
_CTYPES = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}


def type_name(dtype):
    return str(dtype).replace("torch.", "")


def tensor_at(memory, dtype, count):
    """A tensor over memory of the communicator, which lives as long as the tensor's storage."""
    array = (ctypes.c_uint8 * memory.size).from_address(memory.address)
    array.owner = memory
    return torch.frombuffer(array, dtype=dtype, count=count)


class Bucket:
    """Gradients of `parameters`, all of one type and device."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.sizes = [p.numel() for p in parameters]
        self.count = sum(self.sizes)
        self.length = self.count + _EXTRA + len(parameters)
        self.carries_flags = self.dtype in _CTYPES and self.device.type == "cpu"
        self._buffers = None
        self._average = 0  # index of the buffer whose views p.grad may be
        self._local = None  # index of the buffer with the local gradients of a step in progress
        self._absent = ()  # parameters without a local gradient
        self._zeros = {}

    def place(self, channel):
        """Memory of a new world. Collective, in the order of the buckets."""
        old, local = self._buffers, self._local
        self._buffers = [_Flat(self, channel) for _ in range(2)]
        if old is not None and local is not None:
            self._buffers[0].all.copy_(old[local].all)
            self._local, self._average = 0, 1

    def gather(self):
        """Puts the local gradients into one of the buffers."""
        gradients = [p.grad for p in self.parameters]
        views = self._buffers[self._average].views
        self._absent = ()
        if all(g is v for g, v in zip(gradients, views)):
            self._local = self._average  # they have been added to in place
            return
        self._local = 1 - self._average
        target = self._buffers[self._local]
        self._absent = [i for i, gradient in enumerate(gradients) if gradient is None]
        if _copy_all is not None and not self._absent and not any(g.is_sparse for g in gradients):
            _copy_all(target.views, gradients)  # 10 us for four parameters, cat() 18
            return
        flat = []
        for i, gradient in enumerate(gradients):
            if gradient is None:
                flat.append(self._zero(i))
            elif gradient.is_sparse:
                flat.append(gradient.to_dense().reshape(-1))
            else:
                flat.append(gradient.detach().reshape(-1))
        torch.cat(flat, out=target.gradients)

    def _zero(self, i):
        if i not in self._zeros:
            p = self.parameters[i]
            self._zeros[i] = torch.zeros(p.numel(), dtype=p.dtype, device=p.device)
        return self._zeros[i]

    def write_flags(self, rows, change, save):
        local = self._buffers[self._local]
        local.present.fill_(1.0)
        for i in self._absent:
            local.present[i] = 0.0
        local.extra[0], local.extra[1], local.extra[2] = rows, change, save

    def reduce(self, channel, scale):
        """The sum of scale * local gradients over all ranks."""
        local = self._local
        channel.all_reduce(self._buffers[local], self._buffers[1 - local], scale)

    def read_flags(self):
        extra = self._buffers[1 - self._local].extra
        return extra[0], extra[1], extra[2]

    def finish(self, factor):
        """`p.grad` become the average."""
        average = self._buffers[1 - self._local]
        if factor != 1.0:
            average.gradients.mul_(factor)
        nobody = ()
        if self._absent and self.carries_flags:
            nobody = [i for i in self._absent if float(average.present[i]) == 0.0]
        elif self._absent:
            nobody = self._absent
        for i, (p, view) in enumerate(zip(self.parameters, average.views)):
            p.grad = None if i in nobody else view
        self._average, self._local, self._absent = 1 - self._local, None, ()

    def forget(self):
        """The step in progress is not taken."""
        self._local, self._absent = None, ()


class _Flat:
    """A buffer of a bucket: gradients, the extra elements, views of the parameters' shapes."""

    def __init__(self, bucket, channel):
        self.all = channel.allocate(bucket.length, bucket.dtype, bucket.device)
        self.gradients = self.all[: bucket.count]
        self.present = self.all[bucket.count + _EXTRA :]
        self.views = []
        at = 0
        for p, size in zip(bucket.parameters, bucket.sizes):
            self.views.append(self.all[at : at + size].view(p.shape))
            at += size
        if bucket.carries_flags:
            c_type = _CTYPES[bucket.dtype]
            address = self.all.data_ptr() + bucket.count * ctypes.sizeof(c_type)
            self.extra = (c_type * _EXTRA).from_address(address)
        self.type_name = type_name(bucket.dtype)
        self.address = self.all.data_ptr()
        self.length = bucket.length
        self.host = None  # of a channel that goes through host memory


def buckets_of(parameters):
    """By type and device, in the order of the parameters; the one with the flags comes last."""
    groups = {}
    for p in parameters:
        if p.requires_grad:
            groups.setdefault((p.dtype, p.device), []).append(p)
    found = [Bucket(group) for group in groups.values()]
    found.sort(key=lambda b: b.carries_flags)  # stable
    for bucket in found[:-1]:
        bucket.carries_flags = False
    return found
