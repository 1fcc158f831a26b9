# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the sourcing script
# Reads --shape into the cluster's nodes and their fake GPUs. Sourced; pure but for `die`.
#   SHAPE   = NODE ("," NODE)*
#   NODE    = NAME ":" GPUS ["@" FEATURE ("," in words: "+" FEATURE)*]
#   GPUS    = "-" | TYPE "*" COUNT ("+" TYPE "*" COUNT)*     TYPE "gpu" = GRES without a type

# Sets nodes=(names), node_gpus[name]="TYPE…" one word a GPU, node_features[name]="a,b".
declare -a nodes=()
declare -A node_gpus=() node_features=()

parse_shape() {
  local part node gpus group type count i
  for part in ${1//,/ }; do
    [[ $part =~ ^([a-z][a-z0-9-]*):([^@]+)(@([A-Za-z0-9_+.-]+))?$ ]] ||
      die "--shape: '$part' is not NODE:GPUS[@FEATURES], for example n1:t4*2"
    node=${BASH_REMATCH[1]} gpus=${BASH_REMATCH[2]}
    [[ $node != login && ! -v node_gpus[$node] ]] || die "--shape: node name '$node' is taken"
    nodes+=("$node")
    node_features[$node]=${BASH_REMATCH[4]//+/,}
    node_gpus[$node]=
    [[ $gpus == - ]] && continue
    for group in ${gpus//+/ }; do
      [[ $group =~ ^([A-Za-z0-9_.]+)\*([1-9][0-9]?)$ ]] ||
        die "--shape: '$group' is not TYPE*COUNT, for example t4*2"
      type=${BASH_REMATCH[1]} count=${BASH_REMATCH[2]}
      for ((i = 0; i < count; i++)); do node_gpus[$node]+=" $type"; done
    done
  done
  ((${#nodes[@]} > 0 && ${#nodes[@]} <= 200)) || die "--shape: 1 to 200 nodes"
}

is_mig() { [[ $1 =~ (^|_)[0-9]+g\.[0-9]+gb$ ]]; }

has_mig() { # NODE
  local type
  for type in ${node_gpus[$1]}; do is_mig "$type" && return 0; done
  return 1
}

gpu_memory_gb() { # TYPE: an instance's is in its name, cards as sold; a GPU without a type is a T4
  if [[ $1 =~ \.([0-9]+)gb$ ]]; then echo "${BASH_REMATCH[1]}"; return; fi
  case $1 in
    a100*80*) echo 80 ;;
    a100*) echo 40 ;;
    h100*) echo 80 ;;
    h200*) echo 141 ;;
    v100*) echo 32 ;;
    *) echo 16 ;;
  esac
}

# A UUID that is the same in each run and differs between GPUs of the cluster.
fake_uuid() { # PREFIX TEXT
  local h
  h=$(md5sum <<<"$2")
  echo "$1-${h:0:8}-${h:8:4}-${h:12:4}-${h:16:4}-${h:20:12}"
}
