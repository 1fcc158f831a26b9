#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# node.sh NAME ADDRESS: one node, in new network, mount and UTS namespaces: its own host name,
# address, /tmp, /var/tmp, /dev/shm, /run, no /home; then slurmd. It stays as the namespaces'
# anchor (for `run --node`) when slurmd ends.
set -euo pipefail
node=$1 address=$2
drop=()
((EUID == 0)) || drop=(--inh-caps -all --ambient-caps -all)
trap ': >"/sandbox/state/failed-$node"; echo "failed at node.sh:$LINENO: $BASH_COMMAND"' ERR

hostname "$node"
link=v-$node # an interface name has at most 15 characters
((${#link} <= 15)) || link=v-${link: -13}
# The other end goes to the sandbox's own network, pid 1's, and onto its bridge.
ip -batch - <<END
link set lo up
link add eth0 type veth peer name $link netns 1
addr add $address/24 dev eth0
link set eth0 up
END
nsenter --net=/proc/1/ns/net ip link set "$link" master br0 up

# A /run of its own, with the cluster's munge socket in it.
mount -t tmpfs -o mode=755 tmpfs /tmp
mkdir -p /tmp/munge /tmp/slurmd /tmp/fake-gpus
mount --bind /run/munge /tmp/munge
mount --no-mtab --move /tmp /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=555 tmpfs /home
mount --bind "/sandbox/nodes/$node/af" /etc/af
mkdir -p /run/etc && echo "$node" >/run/etc/hostname
mount --bind /run/etc/hostname /etc/hostname
for ((i = 0; i < $(<"/sandbox/nodes/$node/gpu-count"); i++)); do
  # Character devices with a number of their own (major 60 is nobody's): were they /dev/null's,
  # ConstrainDevices=yes would take /dev/null from the jobs. Without root there is no mknod.
  if ((EUID == 0)); then
    mknod -m 666 "/run/fake-gpus/nvidia$i" c 60 "$i"
  else
    : >"/run/fake-gpus/nvidia$i"
    mount --bind /dev/null "/run/fake-gpus/nvidia$i"
  fi
done
# slurmd looks for fake_gpus.conf beside slurm.conf: this node's /etc/slurm is links to the
# cluster's plus that file (an empty one on other nodes would hide their GPUs).
if [[ -e /sandbox/nodes/$node/fake_gpus.conf ]]; then
  mount -t tmpfs -o mode=755 tmpfs /etc/slurm
  ln -s /sandbox/conf/* "/sandbox/nodes/$node/fake_gpus.conf" /etc/slurm/
fi

exec {never}<> <(:)
until [[ -e /sandbox/state/slurmctld-listens ]]; do read -rt 0.005 -u "$never" || true; done
trap - ERR
set +e
# Without root, slurmd and so the jobs would have this namespace's capabilities: jobs are ordinary.
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin setpriv "${drop[@]}" slurmd -D &
slurmd=$!
wait "$slurmd"
: >"/sandbox/state/failed-$node"
while :; do
  sleep infinity &
  wait $!
done
