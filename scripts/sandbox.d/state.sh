# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# Is the sandbox in $dir up, and which process is its first one. Sourced; needs $dir, $repo.
# DIR/state/pid is the first process (pid 1 of the sandbox) as this machine numbers it; the lock
# DIR/lock is held by it and by its supervisor until everything is gone.

# Prints the first process's pid if it is alive. A process being killed still answers kill -0
# and shows up in /proc, so look for a pending SIGKILL (bit 9) and for its memory as well.
first_process() {
  local pid status pending
  pid=$(cat "$dir/state/pid" 2>/dev/null) && [[ $pid ]] || return 1
  # Not $(<file): bash itself exits when the process ends between open and read.
  status=$(cat "/proc/$pid/status" 2>/dev/null) || return 1
  [[ $status == *VmSize:* && $status != *"State:"$'\t'[ZX]* ]] || return 1
  while read -r pending; do
    ((0x$pending & 0x100)) && return 1
  done < <(sed -n 's/^\(SigPnd\|ShdPnd\):\t//p' <<<"$status")
  # The number may have been given to another process: its pid namespace tells.
  [[ $(readlink "/proc/$pid/ns/pid") == "$(cat "$dir/state/pidns" 2>/dev/null)" ]] || return 1
  echo "$pid"
}

is_up() { [[ -e $dir/state/ready ]] && first_process >/dev/null; }

# Takes the lock on fd 9, waiting up to $1 seconds for another command or a dying sandbox.
take_lock() {
  exec 9>"$dir/lock"
  flock -w "$1" 9
}
