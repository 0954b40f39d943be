#!/usr/bin/env bash
# Trains, or searches, in N processes on this machine, each on its share of the cores:
#
#   launch/local.sh N --config configs/acrobot.py [train options]
#   launch/local.sh N sweep --config configs/acrobot.py --run_dir D [sweep options]
#
# One process uses all cores and GPUs by itself, and is faster: this is for trying out what spans
# hosts, and for machines with several sockets. Signals, logs and exit status: launch/ranks.sh.

case $1 in
  '' | *[!0-9]* | 0* | ?????*) echo "usage: $0 N [sweep] --config C [options]" >&2 && exit 2 ;;
esac
processes=$1
shift

# A "host" is a share of the cores that this process may use, such as 0,1, or a plain number where
# that cannot be told.
cores=()
if command -v taskset >/dev/null; then
  IFS=, read -ra ranges < <(taskset -cp $$ | sed 's/.*: //')
  for range in "${ranges[@]}"; do mapfile -t -O ${#cores[@]} cores < <(seq "${range%-*}" "${range#*-}"); done
fi
hosts=()
for ((k = 0; k < processes; k++)); do
  first=$((k * ${#cores[@]} / processes)) last=$(((k + 1) * ${#cores[@]} / processes))
  share=$(IFS=, && echo "${cores[*]:first:last-first}")
  hosts+=("${share:-${cores[first]:-any}}") # more processes than cores: some share one
done

on_cores() {
  if [ "$1" = any ]; then exec bash -c "$2"; else exec taskset -c "$1" bash -c "$2"; fi
}
export -f on_cores
export REMOTE_SHELL=on_cores COORDINATOR="${COORDINATOR:-127.0.0.1:$((20000 + RANDOM % 10000))}"
exec "$(dirname "$0")/ranks.sh" "${hosts[@]}" -- "$@"
