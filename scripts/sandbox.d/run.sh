# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# `sandbox run`: a command inside, with its own stdin, stdout, stderr and exit code. Sourced.
# nsenter, never `ip netns exec`: that mounts another /sys, without the cgroups.

# Prints the pid, as this machine numbers it, of the node's anchor: a child of the first process.
node_process() { # FIRST-PROCESS NODE
  local inner child
  { inner=$(<"$dir/state/node-$2"); } 2>/dev/null || return 1
  for child in $(pgrep -P "$1"); do
    # NSpid: the process's numbers from this pid namespace down to its own.
    [[ $(sed -n 's/^NSpid:.*[[:space:]]//p' "/proc/$child/status" 2>/dev/null) == "$inner" ]] && echo "$child" && return 0
  done
  return 1
}

sandbox_run() {
  local as_root='' node='' cwd='' pid user=ada home=/home/ada variable
  local path=/opt/af/build/bin:/usr/local/bin:/usr/bin:/bin
  local -a variables=() enter drop=()
  while (($#)); do
    case $1 in
      --root) as_root=1; shift ;;
      --node | --cwd | --env)
        (($# > 1)) || die "run $1 needs a value"
        case $1 in
          --node) node=$2 ;;
          --cwd) cwd=$2 ;;
          --env) if [[ $2 == *=* ]]; then variables+=("$2"); elif [[ -v $2 ]]; then variables+=("$2=${!2}"); fi ;;
        esac
        shift 2
        ;;
      --) shift; break ;;
      -*) die "unknown option of run: $1" ;;
      *) break ;;
    esac
  done
  (($#)) || die "run needs a command"
  { [[ -e $dir/state/ready ]] && pid=$(first_process); } || die "$name is not up; start it: scripts/sandbox --name $name up"
  if [[ $node && $node != login ]]; then
    pid=$(node_process "$pid" "$node") || die "no node '$node'; the nodes: $(cat "$dir/state/shape")"
  fi
  enter=(nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup)
  if ((EUID != 0)); then enter+=(--user --preserve-credentials); fi

  if [[ $as_root ]]; then
    user=root home=/root path+=:/usr/sbin:/sbin
    : "${cwd:=/}"
  elif ((EUID == 0)); then
    drop=(--reuid 3001 --regid 3001 --init-groups --bounding-set -all --inh-caps -all)
  fi
  # A login's environment, not the caller's, but for what speaks to Slurm, MPI and af.
  for variable in $(compgen -e); do
    case $variable in
      TERM | LANG | LC_* | AF_* | SLURM_* | SBATCH_* | SALLOC_* | SRUN_* | SQUEUE_* | OMPI_* | PMIX_* | NCCL_*)
        variables+=("$variable=${!variable}") ;;
    esac
  done
  if [[ -s $dir/state/site && $(<"$dir/state/site") ]]; then variables=("AF_CONFIG=$(<"$dir/state/site")" "${variables[@]}"); fi
  # pdeathsig: whoever kills this command (a test's time limit) ends CMD too, not only nsenter.
  exec "${enter[@]}" -- setpriv "${drop[@]}" --pdeathsig TERM -- \
    env -i -C "${cwd:-/work/users/ada}" HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash \
    PATH="$path" "${variables[@]}" "$@"
}
