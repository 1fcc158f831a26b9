# SPDX-License-Identifier: Apache-2.0
"""A rank of a data-parallel training in Python (bench/live_ranks.py says how it is driven).

  ddp_peer.py gloo|af guide|25m
    gloo: PyTorch's DistributedDataParallel over Gloo, as fast as it can be set
    af:   af.train.torch.prepare_model
    guide: the model of the guide, 512 rows a rank; 25m: 25.2 M parameters, 32 rows a rank
"""

import ctypes
import inspect
import os
import sys

import torch
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import live_ranks  # noqa: E402


def model_and_rows(name):
    if name == "guide":
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)), 20, 512
    layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 1)), 1024, 32


def blas():
    """The library that torch multiplies with, and what it takes this CPU for."""
    with open("/proc/self/maps") as file:
        paths = {line.split()[-1] for line in file if "blas" in line.split()[-1]}
    for path in sorted(paths):
        try:
            core = ctypes.CDLL(path).openblas_get_corename
        except (OSError, AttributeError):
            continue
        core.restype = ctypes.c_char_p
        return f"OpenBLAS for {core().decode()}"
    if torch.backends.mkl.is_available():
        return "MKL"
    return ", ".join(sorted(os.path.basename(path) for path in paths)) or "a BLAS of its own"


def fused():
    """Adam in one kernel, where this torch has it for the CPU."""
    if "fused" not in inspect.signature(torch.optim.Adam).parameters:
        return {}
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.zeros(1)
    try:
        torch.optim.Adam([p], fused=True).step()
    except RuntimeError:
        return {}
    return {"fused": True}


def main():
    engine, name = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net, width, batch = model_and_rows(name)
    rows = torch.randn(batch * 20, width)
    labels = (rows.sum(dim=1, keepdim=True) > 0).float()
    if engine == "af":
        import af.train.torch

        model = af.train.torch.prepare_model(net)
    else:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    adam = fused()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **adam)
    loss_fn = nn.BCEWithLogitsLoss()
    at = 0

    def step():
        nonlocal at
        x, y = rows[at : at + batch], labels[at : at + batch]
        at = (at + batch) % len(rows)
        loss = loss_fn(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    fused_text = ", fused Adam" if adam else ""
    live_ranks.serve(step, f"torch {torch.__version__}, {blas()}{fused_text}")


if __name__ == "__main__":
    main()
