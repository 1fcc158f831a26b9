#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The batch script of `make demo`:  sbatch -N3 --af-n-workers=4 demo.sh
#SBATCH --job-name=digits
#SBATCH --time=10

# sbatch runs a copy of this file, so its place tells nothing; af-launch's does: AF/build/bin.
af=$(dirname "$(readlink -f "$(type -P af-launch)")")/../..

af-launch "$af/build/examples/digits" --data "$af/examples/data/digits.h5"
