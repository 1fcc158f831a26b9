#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts the sandbox's first process and cleans up on this machine after its end, however it
# ended. Run by `sandbox up` in a session of its own, holding the lock (fd 9). stdout is up's pipe:
# its end without "ready" tells up that it failed and that everything is gone again.
# shellcheck disable=SC2154 # variables from the environment
set -uo pipefail
# shellcheck source=scripts/sandbox.d/cgroups.sh
. "$parts/cgroups.sh"
trap '' HUP INT TERM
# Nothing of the caller's may live on in the sandbox: its pipes, its locks.
for fd in /proc/self/fd/*; do
  fd=${fd##*/}
  ((fd < 3 || fd == 9 || fd == 255)) || eval "exec $fd>&-" # 255 is this script
done

flags=(--net --mount --uts --ipc --pid --cgroup --fork --kill-child --mount-proc)
[[ $rootless ]] && flags=(--user --map-current-user --keep-caps "${flags[@]}")

# The new cgroup namespaces have this process's groups as their top: join them first (a subshell,
# so that the supervisor itself is outside and the groups can be removed).
(
  trap - HUP INT TERM
  while read -r _ path; do echo "$BASHPID" >"$path/cgroup.procs" || exit 1; done <"$dir/state/cgroups"
  exec unshare "${flags[@]}" -- bash "$parts/init.sh"
) &
unshare=$!

while kill -0 "$unshare" 2>/dev/null; do
  if pid=$(pgrep -P "$unshare") && [[ $pid ]]; then
    readlink "/proc/$pid/ns/pid" >"$dir/state/pidns"
    echo "$pid" >"$dir/state/pid"
    break
  fi
  sleep 0.01
done
wait "$unshare"
if [[ ! -e $dir/state/pid ]]; then
  echo "namespaces are forbidden here: be root, or allow user namespaces" \
    "(kernel.unprivileged_userns_clone=1, user.max_user_namespaces; Docker: --privileged)" >&2
fi
rm -f "$dir/state/ready" "$dir/state/pid"
cgroups_remove
