# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# Writes the cluster's configuration into DIR/conf and DIR/nodes. Sourced, after shape.sh.
# In the sandbox DIR is /sandbox and DIR/conf is /etc/slurm. Needs $dir and up's options.

node_address() { echo "10.99.0.$((10 + $1))"; } # index from 0; the same in every sandbox

gres_of() { # NODE: "gpu:t4:2,gpu:1g.5gb:4"
  local type gres=
  local -A count=()
  local -a order=()
  for type in ${node_gpus[$1]}; do
    [[ -v count[$type] ]] || order+=("$type")
    count[$type]=$((${count[$type]:-0} + 1))
  done
  for type in "${order[@]}"; do
    if [[ $type == gpu ]]; then gres+=,gpu:${count[$type]}; else gres+=,gpu:$type:${count[$type]}; fi
  done
  echo "${gres#,}"
}

node_lines() {
  local i node gres
  for i in "${!nodes[@]}"; do
    node=${nodes[i]} gres=$(gres_of "${nodes[i]}")
    echo "NodeName=$node NodeAddr=$(node_address "$i") CPUs=$cpus RealMemory=$memory_mb State=UNKNOWN" \
      "${gres:+Gres=$gres}" "${node_features[$node]:+Feature=${node_features[$node]}}"
  done
}

base_conf() {
  local user=root
  [[ $rootless ]] && user=ada
  cat <<END
ClusterName=sandbox
SlurmctldHost=login(10.99.0.1)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=5
StateSaveLocation=/run/slurmctld
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/sandbox/log/slurmctld.log
SlurmdLogFile=/sandbox/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/$proctrack
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
GresTypes=gpu
PartitionName=kept Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF DefaultTime=01:00:00 MaxTime=2-00:00:00 State=UP
PartitionName=spare Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=3 DefaultTime=01:00:00 MaxTime=2-00:00:00 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=20 PreemptMode=OFF DefaultTime=01:00:00 MaxTime=2-00:00:00 State=UP
END
  node_lines
}

# Slurm complains on every command's stderr about a key given twice: a line of --slurm-conf
# takes the place of the default with its key (and name, for NodeName= and PartitionName=).
write_slurm_conf() {
  local conf line key
  conf=$(base_conf)
  for line in "${extra_conf[@]}"; do
    key=${line%%=*}=
    [[ ${key,,} == nodename= || ${key,,} == partitionname= ]] && key="${line%% *} "
    conf=$(awk -v key="${key,,}" 'index(tolower($0), key) != 1' <<<"$conf")
    conf+=$'\n'$line
  done
  echo "$conf" >"$dir/conf/slurm.conf"
}

# Fake GPUs. Plain ones are listed by device file; nodes with MIG instances use AutoDetect=nvml
# with a fake_gpus.conf beside slurm.conf, the one way to have Slurm hand MIG UUIDs to jobs.
# /etc/af/fake-gpus.json tells our programs what NVML would (docs/sandbox.md has its format).
write_gpus() {
  local node type i parent driver=535.183.01 count sep uuid parent_uuid mig_index
  : >"$dir/conf/gres.conf"
  for node in "${nodes[@]}"; do
    mkdir -p "$dir/nodes/$node/af"
    rm -f "$dir/nodes/$node/fake_gpus.conf"
    read -ra types <<<"${node_gpus[$node]}"
    count=0
    for type in "${types[@]}"; do is_mig "$type" && ((++count)); done
    i=0 mig_index=0 sep='['
    if ((count)); then echo "NodeName=$node AutoDetect=nvml" >>"$dir/conf/gres.conf"; fi
    for type in "${types[@]}"; do
      if is_mig "$type"; then # half of the instances on each of two cards
        parent=$((2 * mig_index++ / count))
        uuid=$(fake_uuid MIG "$node/$i") parent_uuid=$(fake_uuid GPU "$node/card$parent")
      else
        uuid=$(fake_uuid GPU "$node/$i") parent_uuid=$uuid
      fi
      if ((count)); then
        # links: -1 is the GPU itself; the last fields are its id and how jobs are told of it.
        printf '%s|%s|0-%s|%s|/run/fake-gpus/nvidia%s|%s|nvidia_gpu_env\n' "$type" "$cpus" $((cpus - 1)) \
          "$(fake_links "$i" "${#types[@]}")" "$i" "$(is_mig "$type" && echo "$uuid" || echo '(null)')" \
          >>"$dir/nodes/$node/fake_gpus.conf"
      elif [[ $type == gpu ]]; then
        echo "NodeName=$node Name=gpu File=/run/fake-gpus/nvidia$i" >>"$dir/conf/gres.conf"
      else
        echo "NodeName=$node Name=gpu Type=$type File=/run/fake-gpus/nvidia$i" >>"$dir/conf/gres.conf"
      fi
      printf '%s{"index": %s, "minor": %s, "uuid": "%s", "type": "%s", "parent_uuid": "%s", "memory_gb": %s, "driver": "%s"}' \
        "$sep" "$i" "$i" "$uuid" "$type" "$parent_uuid" "$(gpu_memory_gb "$type")" "$driver"
      sep=$',\n '
      ((++i))
    done >"$dir/nodes/$node/af/fake-gpus.json"
    if ((i)); then echo ']'; else echo '[]'; fi >>"$dir/nodes/$node/af/fake-gpus.json"
    echo "$i" >"$dir/nodes/$node/gpu-count"
  done
}

fake_links() { # INDEX COUNT: "0,-1,0"
  local j links=
  for ((j = 0; j < $2; j++)); do links+=,$((j == $1 ? -1 : 0)); done
  echo "${links#,}"
}

write_hosts() {
  local i
  printf '127.0.0.1 localhost\n10.99.0.1 login\n'
  for i in "${!nodes[@]}"; do echo "$(node_address "$i") ${nodes[i]}"; done
}

write_conf() {
  mkdir -p "$dir/conf" "$dir/nodes"
  write_slurm_conf
  write_gpus
  write_hosts >"$dir/conf/hosts"
  {
    echo "CgroupPlugin=cgroup/$([[ $(<"$dir/state/cgroups") == unified* ]] && echo v2 || echo v1)"
    printf '%s\n' CgroupMountpoint=/sys/fs/cgroup CgroupAutomount=no IgnoreSystemd=yes "${extra_cgroup_conf[@]}"
  } >"$dir/conf/cgroup.conf"
  if [[ $plugin == none ]]; then
    : >"$dir/conf/plugstack.conf"
  else
    echo "$plugstack $plugin config=$site" >"$dir/conf/plugstack.conf"
  fi
}
