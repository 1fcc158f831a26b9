# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# The sandbox's own subtree in the machine's cgroup hierarchies. Sourced; needs $dir, $name.
# Slurm's plugin creates /slurm_NODE at the top of what it sees, the same in every sandbox, so
# each sandbox sees (cgroup namespace and bind mount) only its own subtree as the top.

# Slurm 22.05's v1 plugin looks at these; only the freezer is needed for proctrack/cgroup.
cgroup_controllers=(freezer cpuset memory devices cpuacct)

cgroup_tag() { # one per directory, not per name: two clones may both have a sandbox "default"
  local sum
  sum=$(cksum <<<"$dir")
  echo "af-sandbox-$name-${sum%% *}"
}

# "controller mountpoint" a line: the v1 hierarchies, or "unified mountpoint" where there is only
# cgroup v2 (on hybrid machines the v2 hierarchy has no controllers worth having).
cgroup_mounts() {
  awk -v wanted="${cgroup_controllers[*]}" '
    BEGIN { split(wanted, list, " "); for (i in list) want[list[i]] = 1 }
    { for (i = 6; $i != "-"; i++); type = $(i + 1)
      if (type == "cgroup2" && !unified) unified = $5
      if (type != "cgroup") next
      n = split($(i + 3), option, ",")
      for (j = 1; j <= n; j++) if (option[j] in want && !(option[j] in seen)) {
        seen[option[j]] = 1; print option[j], $5 } }
    END { if (!("freezer" in seen) && unified) print "unified", unified }' /proc/self/mountinfo
}

# Creates the subtree and prints "controller path" lines; fails where that cannot be.
cgroups_create() {
  local controller mount path usable=
  while read -r controller mount; do
    path=$mount/$(cgroup_tag)
    [[ -d $path ]] || mkdir "$path" 2>/dev/null || continue
    if [[ $controller == cpuset ]]; then # a new cpuset is empty and takes no process
      cat "$mount/cpuset.cpus" >"$path/cpuset.cpus" && cat "$mount/cpuset.mems" >"$path/cpuset.mems"
    fi
    [[ $controller == freezer || $controller == unified ]] && usable=1
    echo "$controller $path"
  done < <(cgroup_mounts)
  [[ $usable ]]
}

# A frozen process cannot die, and pid 1 waits for it.
cgroups_thaw() {
  local controller mount state
  while read -r controller mount; do
    [[ $controller == freezer && -d $mount/$(cgroup_tag) ]] || continue # v2's freezer lets die
    while read -r state; do
      { echo THAWED >"$state"; } 2>/dev/null || true # the supervisor may be removing them
    done < <(find "$mount/$(cgroup_tag)" -name freezer.state 2>/dev/null)
  done < <(cgroup_mounts)
}

# Removes the subtree; its processes must be gone (slurmd leaves empty groups when killed).
cgroups_remove() {
  local controller mount
  while read -r controller mount; do
    [[ -d $mount/$(cgroup_tag) ]] || continue
    for _ in {1..20}; do # the last processes may still be on their way out
      find "$mount/$(cgroup_tag)" -depth -type d -exec rmdir {} + 2>/dev/null && break
      sleep 0.05
    done
  done < <(cgroup_mounts)
}
