# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# `sandbox down`: kills the first process, waits until everything is gone. Sourced.

sandbox_down() {
  local pid
  (($# == 0)) || die "down takes no arguments"
  # shellcheck source=scripts/sandbox.d/cgroups.sh
  . "$parts/cgroups.sh"
  [[ -e $dir/lock ]] || return 0
  for _ in {1..200}; do
    if pid=$(first_process); then kill -KILL "$pid"; fi
    if take_lock 0.1; then
      # The supervisor has cleaned up, unless it was killed as well.
      cgroups_remove
      rm -f "$dir/state/ready" "$dir/state/pid"
      return 0
    fi
    cgroups_thaw
  done
  die "$name is not gone after 20 s: first process $(cat "$dir/state/pid" 2>/dev/null)"
}
