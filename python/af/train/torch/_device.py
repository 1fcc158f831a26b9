# SPDX-License-Identifier: Apache-2.0
"""Which device this rank computes on."""

import os

import torch

from .._session import session

_NO_CUDA = (
    "ScalingConfig(use_gpu=True), but this process sees no GPU "
    "(torch {version}, CUDA of this build: {cuda}, CUDA_VISIBLE_DEVICES={visible}): ask for GPUs in "
    "the job, use a PyTorch built for CUDA, or set use_gpu=False"
)


def choose(use_gpu):
    """The device; raises RuntimeError when there has to be a GPU and there is none."""
    if not use_gpu:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError(
            _NO_CUDA.format(
                version=torch.__version__,
                cuda=torch.version.cuda,
                visible=os.environ.get("CUDA_VISIBLE_DEVICES", "not set"),
            )
        )
    index = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", index if index < torch.cuda.device_count() else 0)
    torch.cuda.set_device(device)
    return device


def get_device():
    run = session().run
    if run is not None:
        return run.device
    return choose(torch.cuda.is_available())


def get_devices():
    return [get_device()]
