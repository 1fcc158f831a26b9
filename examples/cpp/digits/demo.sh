#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The batch script of `make demo`:  sbatch --af-max-workers=4 --af-min-gpu-memory-gb=16 demo.sh
#SBATCH --job-name=digits
#SBATCH --time=10

# sbatch runs a copy of this file, so its place tells nothing; af-launch's does: AF/build/bin.
af=$(dirname "$(readlink -f "$(type -P af-launch)")")/../..

# The model is tiny: --work-ms makes a step last as long as that of a larger one, so that there is
# something to see when GPUs go and come.
af-launch "$af/build/examples/digits" --data "$af/examples/data/digits.h5" --work-ms 120
