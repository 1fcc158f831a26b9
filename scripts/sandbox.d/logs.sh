# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154 # variables of the sourcing script
# `sandbox logs [DAEMON]`: the end of every daemon's log, or one whole log. Sourced.

sandbox_logs() {
  local daemon=${1:-}
  [[ -d $dir/log ]] || die "no logs in $dir/log: $name was never up"
  if [[ $daemon ]]; then
    [[ -e $dir/log/$daemon.log ]] || die "no log of '$daemon'; there are: $(cd "$dir/log" && echo ./*.log)"
    cat "$dir/log/$daemon.log"
  else
    tail -n 20 "$dir"/log/*.log
  fi
}
