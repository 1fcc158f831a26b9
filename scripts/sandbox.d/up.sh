# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# `sandbox up`: options, configuration, start of the supervisor, wait for "ready". Sourced.

# A file named by the caller, as the sandbox sees it: below /opt/af if it is in the repository,
# a copy if it is elsewhere on this machine, else taken as a path inside the sandbox.
seen_inside() { # PATH
  local real
  real=$(realpath -m "$1")
  if [[ $real == "$repo"/* ]]; then
    echo "/opt/af${real#"$repo"}"
  elif [[ -e $real && $1 != /opt/af/* ]]; then
    mkdir -p "$dir/given" && cp "$real" "$dir/given/" && echo "/sandbox/given/${real##*/}"
  else
    echo "$1"
  fi
}

read_up_options() {
  shape='n1:t4*2,n2:t4*2,n3:1g.5gb*4' cpus=64 memory_mb=262144
  proctrack='' plugin='' plugstack=required site=/opt/af/etc/af.yaml site_given='' extra_conf=() extra_cgroup_conf=()
  while (($#)); do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --shape | --cpus | --memory-mb | --proctrack | --plugin | --plugstack | --site | --slurm-conf | --cgroup-conf)
        (($# > 1)) || die "$1 needs a value" ;;
      *) die "unknown option of up: $1; see scripts/sandbox --help" ;;
    esac
    case $1 in
      --shape) shape=$2 ;;
      --cpus) cpus=$2 ;;
      --memory-mb) memory_mb=$2 ;;
      --proctrack) proctrack=$2 ;;
      --plugin) plugin=$2 ;;
      --plugstack) plugstack=$2 ;;
      --site) site=$2 site_given=1 ;;
      --slurm-conf) extra_conf+=("$2") ;;
      --cgroup-conf) extra_cgroup_conf+=("$2") ;;
    esac
    shift 2
  done
  [[ $cpus =~ ^[1-9][0-9]*$ && $memory_mb =~ ^[1-9][0-9]*$ ]] || die "--cpus and --memory-mb take numbers"
  [[ $proctrack =~ ^(|cgroup|linuxproc)$ ]] || die "--proctrack '$proctrack': cgroup or linuxproc"
  [[ $plugstack =~ ^(required|optional)$ ]] || die "--plugstack '$plugstack': required or optional"
}

need_programs() {
  local program missing=()
  for program in slurmctld slurmd munged ip unshare nsenter setpriv flock; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  ((${#missing[@]} == 0)) || die "missing: ${missing[*]} (make deps installs the Debian packages)"
}

wait_for_lock() {
  for _ in {1..100}; do
    take_lock 0 && return 0
    if is_up; then
      say "$name is already up (first process $(first_process))"
      exit 0
    fi
    cgroups_thaw
    sleep 0.1
  done
  die "$name is being started or stopped by another command since 10 s; see $dir/log"
}

sandbox_up() {
  local answer='' word
  local options=("$@")
  export PATH=$PATH:/usr/sbin:/sbin
  umask 022
  read_up_options "$@"
  need_programs
  # shellcheck source=scripts/sandbox.d/cgroups.sh
  . "$parts/cgroups.sh"
  # shellcheck source=scripts/sandbox.d/shape.sh
  . "$parts/shape.sh"
  # shellcheck source=scripts/sandbox.d/slurm-conf.sh
  . "$parts/slurm-conf.sh"
  parse_shape "$shape"
  mkdir -p "$dir" 2>/dev/null || die "cannot create $dir"
  wait_for_lock
  cgroups_remove # what a killed sandbox left
  rm -rf "$dir/state" "$dir/log" "$dir/given"
  mkdir -p "$dir"/{state,log,root,work/users/ada,depot,home/ada}
  rootless=
  if ((EUID != 0)); then rootless=1; else
    chown 3001:3001 "$dir/work/users/ada" "$dir/home/ada"
    chmod 1777 "$dir/depot"
  fi
  auto=
  if [[ $proctrack != linuxproc ]]; then
    [[ $proctrack ]] || auto=1
    if cgroups_create >"$dir/state/cgroups"; then
      proctrack=cgroup
    else
      cgroups_remove
      [[ $proctrack == cgroup ]] && die "no writable cgroup hierarchy here, which proctrack/cgroup needs"
      say "no writable cgroup hierarchy here: using proctrack/linuxproc"
      proctrack=linuxproc
    fi
  fi
  [[ $proctrack == cgroup ]] || : >"$dir/state/cgroups"
  if [[ -z $plugin ]]; then
    plugin=none
    [[ -e $repo/build/lib/slurm/spank_af.so ]] && plugin=/opt/af/build/lib/slurm/spank_af.so
  fi
  [[ $plugin == none ]] || plugin=$(seen_inside "$plugin")
  site=$(seen_inside "$site")
  write_conf
  echo "${site_given:+$site}" >"$dir/state/site"
  echo "$shape" >"$dir/state/shape"

  # The supervisor gets a clean environment and a session of its own; the pipe closes
  # without "ready" when it failed and has cleaned up.
  while read -r word; do
    answer=$word
    [[ $word == ready ]] && break
  done < <(exec env -i PATH="$PATH" name="$name" dir="$dir" repo="$repo" parts="$parts" \
    rootless="$rootless" node_names="${nodes[*]}" \
    setsid -f bash "$parts/supervise.sh" </dev/null 2>"$dir/log/sandbox.log")
  exec 9>&-
  if [[ $answer != ready && $auto && $proctrack == cgroup ]] &&
    grep -qiE '(error|fatal).*cgroup' "$dir"/log/slurmd-*.log 2>/dev/null; then
    say "Slurm cannot use the cgroups here ($(grep -hiEom1 '(error|fatal).*cgroup.*' "$dir"/log/slurmd-*.log | head -n1)): using proctrack/linuxproc"
    exec "$repo/scripts/sandbox" --name "$name" --dir "$dir" up "${options[@]}" --proctrack linuxproc
  fi
  if [[ $answer != ready ]]; then
    say "$name did not come up:"
    cat "$dir/log/sandbox.log" >&2
    exit 1
  fi
}
