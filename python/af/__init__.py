# SPDX-License-Identifier: Apache-2.0
"""af: training on a Slurm cluster's GPUs, also on those that others may take back.

``af.train`` and ``af.train.torch`` run a training function on all GPUs of a job. Importing ``af``
alone loads nothing else: neither torch nor the native library.
"""

__version__ = "0.1.0"
