# SPDX-License-Identifier: Apache-2.0
# For bench_allreduce and bench_collectives: af's local backend against Open MPI's, both in the same
# processes, in interleaved blocks (bench/mpi_pair.h says how). Ratio: Open MPI's time over ours.
# shellcheck shell=bash
program=build/bench/collective_pair
if ! command -v mpirun >/dev/null || [[ ! -x $program ]]; then
  echo "${0##*/}: needs mpirun and $program (make benchmarks)" >&2
  exit 1
fi

# One thread per rank, pinned by the program itself, so mpirun does not bind.
launch=(mpirun --bind-to none --oversubscribe)
((EUID == 0)) && launch+=(--allow-run-as-root)
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# With fewer cores than ranks Open MPI does not know to yield unless it is told; with enough it spins,
# which is its default.
cores=$(nproc)
waiting() { (($1 > cores)) && echo "--mca mpi_yield_when_idle 1" || echo "--mca mpi_yield_when_idle 0"; }

# compare RANKS NAME PEER BYTES OURS THEIRS "MPI's parameters" [words of collective_pair]
compare() {
  local ranks=$1 name=$2 peer=$3 bytes=$4 ours=$5 theirs=$6 parameters=$7
  shift 7
  # shellcheck disable=SC2086  # parameters are words
  "${launch[@]}" -n "$ranks" $parameters "$program" "$name" "$peer" "$bytes" "$ours" "$theirs" "$@"
}
