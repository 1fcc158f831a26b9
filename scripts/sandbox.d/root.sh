# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# The sandbox's root file system: a tmpfs with this machine's directories bound into it and the
# sandbox's own /work, /depot, /opt/af, /home, /run, /tmp and parts of /etc. Nothing is created on
# the machine itself but in DIR. Sourced by init.sh, in its mount namespace. Needs $dir, $repo.

bind() { mount --bind "$1" "$2" 2>/dev/null || mount --rbind "$1" "$2"; }

# Without root, a tree with mounts of the machine's below it may only be bound as a whole.
bind_all_of() { # SOURCE TARGET NOT… : every entry of a directory but the named ones
  local source=$1 target=$2 entry base
  shift 2
  for entry in "$source"/*; do
    base=${entry##*/}
    [[ " $* " == *" $base "* ]] && continue
    if [[ -L $entry ]]; then
      cp -P "$entry" "$target/"
    elif [[ -d $entry ]]; then
      mkdir -p "$target/$base" && mount --rbind "$entry" "$target/$base"
    elif [[ -f $entry ]]; then
      : >"$target/$base" && mount --bind "$entry" "$target/$base"
    fi
  done
}

build_root() {
  local root=$dir/root path
  mount -t tmpfs -o mode=755 sandbox "$root"
  mkdir -p "$root"/{opt/af,work,depot,home,run,tmp,etc,sandbox,.etc/upper,.etc/work}
  bind_all_of '' "$root" opt work depot home run tmp etc sandbox lost+found
  bind_all_of /opt "$root/opt" af
  bind "$dir" "$root/sandbox"
  bind "$dir/work" "$root/work"
  bind "$dir/depot" "$root/depot"
  bind "$dir/home" "$root/home"
  show_repository "$root/opt/af"
  for path in run tmp var/tmp dev/shm; do
    [[ -d $root/$path ]] && mount -t tmpfs -o "mode=$([[ $path == run ]] && echo 755 || echo 1777)" tmpfs "$root/$path"
  done
  build_etc "$root"
  if [[ -s $dir/state/cgroups ]]; then show_own_cgroups "$root"; fi
  cd "$root" || return
  pivot_root . .
  umount -l .
  cd /
}

# The repository, read-only. A clone that only its owner may enter (mktemp -d makes such) is shown
# entry by entry in a folder that everybody may enter.
show_repository() { # TARGET
  local entry
  if [[ $rootless || $(stat -c %A "$repo") == *r-x ]]; then
    bind "$repo" "$1"
    bind_read_only "$1"
    return
  fi
  bind_all_of "$repo" "$1"
  for entry in "$1"/*; do
    if mountpoint -q "$entry"; then bind_read_only "$entry"; fi
  done
}

bind_read_only() { # MOUNTPOINT
  # Without root the mount keeps the flags it has on the machine, and they must be named again.
  mount -o remount,bind,ro "$1" 2>/dev/null ||
    mount -o "remount,bind,ro,$(findmnt -nfo VFS-OPTIONS "$1" | sed 's/^rw/ro/')" "$1"
}

# /etc is the machine's with our own files on top: an overlay, or a copy where there is none.
build_etc() { # ROOT
  local root=$1
  local options="lowerdir=/etc,upperdir=$root/.etc/upper,workdir=$root/.etc/work"
  if ! mount -t overlay -o "$options${rootless:+,userxattr}" etc "$root/etc" 2>/dev/null; then
    cp -a /etc/. "$root/etc/" 2>/dev/null || true # but what we may not read
  fi
  mkdir -p "$root/etc/slurm" "$root/etc/af"
  bind "$dir/conf" "$root/etc/slurm"
  local own=3001 file
  [[ $rootless ]] && own=$EUID
  sed -e '/^ada:/d' -e "/^[^:]*:[^:]*:$own:/d" /etc/passwd >"$root/.etc/passwd"
  echo "ada:x:$own:$([[ $rootless ]] && id -g || echo 3001):Ada:/home/ada:/bin/bash" >>"$root/.etc/passwd"
  sed -e '/^ada:/d' -e "/^[^:]*:[^:]*:$([[ $rootless ]] && id -g || echo 3001):/d" /etc/group >"$root/.etc/group"
  echo "ada:x:$([[ $rootless ]] && id -g || echo 3001):" >>"$root/.etc/group"
  printf '%s\n' 'passwd: files' 'group: files' 'shadow: files' 'hosts: files' 'services: files' >"$root/.etc/nsswitch.conf"
  echo login >"$root/.etc/hostname"
  : >"$root/.etc/resolv.conf"
  cp "$dir/conf/hosts" "$root/.etc/hosts"
  for file in passwd group nsswitch.conf hostname resolv.conf hosts; do
    # Replaced, not written through: the machine's may be a symlink to somewhere of its own.
    rm -f "$root/etc/$file" && cp "$root/.etc/$file" "$root/etc/$file"
  done
}

# Only the sandbox's own subtree, as the top of each hierarchy.
show_own_cgroups() { # ROOT
  local controller path
  mount -t tmpfs -o mode=755 cgroup "$1/sys/fs/cgroup"
  while read -r controller path; do
    if [[ $controller == unified ]]; then
      bind "$path" "$1/sys/fs/cgroup"
      share_out_controllers "$1/sys/fs/cgroup"
      return
    fi
    mkdir "$1/sys/fs/cgroup/$controller"
    bind "$path" "$1/sys/fs/cgroup/$controller"
  done <"$dir/state/cgroups"
}

# cgroup v2 gives controllers to groups without processes only: move out of the top. Slurm's plugin
# wants a system.slice there and takes what controllers it finds in it (none is enough to track).
share_out_controllers() { # TOP
  local controller
  mkdir "$1/init" "$1/system.slice"
  echo $$ >"$1/init/cgroup.procs"
  for controller in $(<"$1/cgroup.controllers"); do
    { echo "+$controller" >"$1/cgroup.subtree_control" &&
      echo "+$controller" >"$1/system.slice/cgroup.subtree_control"; } 2>/dev/null || true
  done
}
