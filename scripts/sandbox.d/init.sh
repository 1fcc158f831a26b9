#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# First process (pid 1) of a sandbox: builds its root and network, starts munged, slurmctld and
# the nodes, says "ready" when all nodes are idle, then stays to reap. Its end ends everything.
# Environment from `sandbox up`: name dir repo parts rootless node_names. stdout is up's pipe.
# shellcheck disable=SC2154 # variables from the environment
set -euo pipefail
exec 3>&1 1>&2 # 3: up's pipe
trap 'echo "failed at ${BASH_SOURCE##*/}:$LINENO: $BASH_COMMAND" >&2' ERR
# shellcheck source=scripts/sandbox.d/root.sh
. "$parts/root.sh"
exec {never}<> <(:) # nothing ever comes: `read -t` from it is a sleep without a process

nap() { read -rt "$1" -u "$never" || true; }

fail() { # TEXT [LOG]
  echo "$1" >&2
  if [[ ${2:-} ]]; then tail -n 15 "$2" >&2 || true; fi
  exit 1
}

# The bridge gets a MAC: it would else take its lowest port's, which changes as nodes join, while
# those before still send to the old one.
start_network() {
  hostname login
  ip -batch - <<'END'
link set lo up
link add br0 address 02:00:0a:63:00:01 type bridge
addr add 10.99.0.1/24 dev br0
link set br0 up
END
}

start_munged() {
  mkdir /run/munge
  mkdir -m 700 /run/munge-key
  head -c 128 /dev/urandom >/run/munge-key/key
  chmod 400 /run/munge-key/key
  # --force: owner and mode of log and key's folders are not what munged likes without root.
  munged --foreground --force --key-file=/run/munge-key/key --socket=/run/munge/munge.socket.2 \
    --pid-file=/run/munge-key/pid --seed-file=/run/munge-key/seed --log-file=/sandbox/log/munged.log \
    --num-threads=2 >>/sandbox/log/munged.log 2>&1 3>&- 9>&- &
  munged=$!
}

start_slurmctld() {
  until [[ -S /run/munge/munge.socket.2 ]]; do
    kill -0 "$munged" 2>/dev/null || fail 'munged ended:' /sandbox/log/munged.log
    nap 0.005
  done
  mkdir -p /run/slurmctld
  slurmctld -D >>/sandbox/log/slurmctld.out 2>&1 3>&- 9>&- &
  slurmctld=$!
}

start_nodes() {
  local i=10 node # as node_address in slurm-conf.sh
  for node in $node_names; do
    unshare --net --mount --uts -- bash "/opt/af/scripts/sandbox.d/node.sh" "$node" "10.99.0.$i" \
      >>"/sandbox/log/node-$node.out" 2>&1 3>&- 9>&- &
    echo $! >"/sandbox/state/node-$node"
    ((++i))
  done
}

# slurmd tries again only after a second if slurmctld does not listen yet (port 6817, state 0A).
wait_for_slurmctld() {
  until [[ $(</proc/net/tcp) == *:1AA1\ *\ 0A\ * ]]; do
    kill -0 "$slurmctld" 2>/dev/null || fail 'slurmctld ended:' /sandbox/log/slurmctld.log
    nap 0.005
  done
  : >/sandbox/state/slurmctld-listens
}

wait_for_idle() {
  local node states total end=$((SECONDS + 20))
  total=$(wc -w <<<"$node_names")
  while :; do
    states=$(sinfo -h -N -p kept -o %T 2>/dev/null || true)
    (($(grep -cx idle <<<"$states") == total)) && return 0
    kill -0 "$slurmctld" 2>/dev/null || fail 'slurmctld ended:' /sandbox/log/slurmctld.log
    for node in $node_names; do
      if [[ -e /sandbox/state/failed-$node ]]; then
        cat "/sandbox/log/node-$node.out" >&2
        fail "slurmd of $node ended:" "/sandbox/log/slurmd-$node.log"
      fi
    done
    if ((SECONDS > end)); then
      sinfo -N -l >&2 || true
      fail 'the nodes are not idle after 20 s; end of slurmctld.log:' /sandbox/log/slurmctld.log
    fi
    nap 0.02
  done
}

build_root
start_munged
start_network
start_nodes
start_slurmctld
wait_for_slurmctld
wait_for_idle
: >/sandbox/state/ready
echo ready >&3
exec 3>&-
trap - ERR
set +e
while :; do
  sleep infinity 9>&- &
  wait $! # bash reaps whatever is re-parented to it
done
