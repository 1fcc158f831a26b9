# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# `sandbox status`: up or down (exit code 3), and the nodes. Sourced.

sandbox_status() {
  (($# == 0)) || die "status takes no arguments"
  if ! is_up; then
    echo "$name: down"
    exit 3
  fi
  echo "$name: up, first process $(first_process), files in $dir"
  # shellcheck source=scripts/sandbox.d/run.sh
  . "$parts/run.sh"
  (sandbox_run -- sinfo -N -o '%.12N %.10P %.8t %.6c %.8m %.20G %f' </dev/null)
}
