#!/usr/bin/env bash
# Starts one process ("rank") of a run or of a sweep on each host through a remote shell, and looks after them.
# The launchers for ssh, PBS, OAR and one machine are a few lines around this one:
#
#   [REMOTE_SHELL="ssh -tt"] launch/ranks.sh HOST... -- [sweep] --config C --run_dir D [options]
#
# The word sweep starts jaxrl_scale.sweep, with its options, instead of jaxrl_scale.train.
#
# Run it in the repository's root, which all hosts must have under the same path, as they must the
# run directory (default: runs/<config>-<time>, without --config runs/run-<time>). Where that holds a run
# or a sweep already, it goes on.
#
#   REMOTE_SHELL  runs a command on a host, called as `$REMOTE_SHELL HOST 'command line'`; may be an
#                 exported bash function whose last word is an exec. With ssh, -tt lets a rank die
#                 with its connection.
#   COORDINATOR   address of the first host for the others; default: its name, with a free-looking
#                 port. Give HOST:PORT if a firewall leaves only some ports open.
#   PYTHON        default: .venv/bin/python if there is one, else python3
#   JAXRL_SECRET_FILE  a file with the secret by which the ranks know each other, mode 600, that all
#                 hosts see; default: one is made in the run directory, and deleted at the end
#   GRACE         whole seconds (60) that the others get to save and end when one rank has failed
#
# Variables JAX_*, XLA_*, WANDB_* (but not a key: `wandb login` once instead) and PYTHONPATH are
# handed on. What rank k prints stands in D/ranks/k.log; rank 0 is also shown here. After a mistake
# (status 2) the last line of each rank is shown, and a folder that this call made is removed.
#
# TERM, INT, HUP, USR1 or USR2 make all ranks save and end; a second one ends them at once.
#
# The exit status is 75 where starting again with the same command makes sense, else that of the
# rank that failed (docs/runs.md has a table).

# shellcheck source=launch/again.sh
source "$(dirname "$0")/again.sh" || exit 2
hosts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do hosts+=("$1") && shift; done
if [ ${#hosts[@]} -eq 0 ] || [ $# -eq 0 ]; then
  echo "usage: $0 HOST... -- [sweep] --config C --run_dir D [options]" >&2
  exit 2
fi
shift
command=train
case $1 in train | sweep) command=$1 && shift ;; esac
for word in "$@"; do
  case $word in # starts nothing, and needs neither ranks nor a folder
    -h | --help | --dry_run) exec "$PYTHON" -m "jaxrl_scale.$command" "$@" ;;
  esac
done

# --- a new run, or one to resume ---
run_dir=''
read_options "$@"
name=$(basename "${config[1]:-run}" .py)
run_dir=${run_dir:-runs/$name-$(date +%Y%m%d-%H%M%S)}
new_or_resumed

# --- what every rank runs ---
REMOTE_SHELL=${REMOTE_SHELL:-ssh -tt}
# In place of the subshell that calls it, so that a signal finds it.
[ "$(type -t "${REMOTE_SHELL%% *}")" = function ] || REMOTE_SHELL="exec $REMOTE_SHELL"
# Above the ports of services, below those that the kernel hands out to clients.
COORDINATOR=${COORDINATOR:-${hosts[0]#*@}:$((20000 + RANDOM % 10000))}
environment=("JAX_COORDINATOR_ADDRESS=$COORDINATOR" "JAX_NUM_PROCESSES=${#hosts[@]}")
for name in $(compgen -e); do
  case $name in
    WANDB_API_KEY | JAX_COORDINATOR_ADDRESS | JAX_NUM_PROCESSES | JAX_PROCESS_ID) ;;
    JAX_* | XLA_* | WANDB_* | PYTHONPATH) environment+=("$name=${!name}") ;;
  esac
done
logs=$run_dir/ranks
fresh=$([ -e "$run_dir" ] || echo yes)
mkdir -p "$logs" || exit 74
me=$HOSTNAME.$$ # in the names of what is deleted at the end
for left in "$logs"/*."$HOSTNAME".*; do # by a launcher of this host that was killed
  pid=${left##*."$HOSTNAME".} && pid=${pid%%.*}
  if [ "$pid" = $$ ] || ! kill -0 "$pid" 2>/dev/null; then rm -f "$left"; fi
done
if [ -z "$JAXRL_SECRET_FILE" ]; then # not in a variable: command lines can be read by everybody
  own_secret=$(cd "$logs" && mktemp "$PWD/secret.$me.XXXXXX") || exit 74
  secret >"$own_secret" && echo >>"$own_secret"
fi
environment+=("JAXRL_SECRET_FILE=${own_secret:-$JAXRL_SECRET_FILE}")

# In a subshell: on_host RANK 'COMMAND LINE', which bash reads, whatever the login shell there is.
on_host() {
  $REMOTE_SHELL "${hosts[$1]}" "exec bash -c $(printf %q "cd $(printf %q "$PWD") && $2")" </dev/null
}

start() { # RANK
  local folder log pid line
  folder=$(printf %q "$logs") log=$(printf %q "$logs/$1.log") pid=$(printf %q "$logs/$1.$me.pid")
  line=$(printf '%q ' env "${environment[@]}" "JAX_PROCESS_ID=$1" \
    "$PYTHON" -m "jaxrl_scale.$command" "${options[@]}")
  # Our signals go to the process whose number is written here.
  on_host "$1" "mkdir -p $folder && echo \$\$ > $pid && exec $line >> $log 2>&1"
}

# Sends signal $1 to all ranks. One that cannot be reached, or has not begun yet, loses its
# connection. In a subshell: `wait` passes its jobs over, and $! stays ours, which the trap that
# calls this may come before we have read.
send() (
  for rank in "${!ranks[@]}"; do
    {
      (on_host "$rank" "kill -$1 \$(cat $(printf %q "$logs/$rank.$me.pid"))") || kill "${ranks[rank]}"
    } >/dev/null 2>&1 &
  done
)

# shellcheck disable=SC2317 # reached through a trap
signalled() { # [INT]
  if [ -z "$stopping" ]; then
    stopping=yes
    [ "$1" != INT ] ||
      echo 'Ctrl-C: the run stops after this iteration and is saved; Ctrl-C again ends it at once' >&2
    send USR1 # which, unlike TERM, no library takes for itself
  else
    end_at_once
  fi
}

end_at_once() {
  send KILL
  kill -KILL "${ranks[@]}"
} 2>/dev/null

ranks=() stopping='' tick='' deadline='' status=0
trap signalled TERM HUP USR1 USR2
trap 'signalled INT' INT
touch "$logs/0.log" || exit 74
# macOS has bash 3.2, which cannot wait for any of several, and a tail that knows no --pid.
case $BASH_VERSION in 3.* | 4.[0-2].*) any='' ;; *) any=-n ;; esac
follow=(tail)
tail --pid=$$ -n 0 /dev/null 2>/dev/null && follow+=("--pid=$$")
# A signal to all processes of a job does not end it: rank 0 still has to say how it was saved.
(trap '' TERM HUP INT USR1 USR2 && exec "${follow[@]}" -c "+$(($(wc -c <"$logs/0.log") + 1))" -f "$logs/0.log") &
tail=$!
disown
for rank in "${!hosts[@]}"; do
  start "$rank" &
  ranks[rank]=$!
done
[ -z "$stopping" ] || send USR1 # a signal came when not all had started

# --- until all have ended ---
while [ ${#ranks[@]} -gt 0 ]; do
  # For any of them, or a signal; but for two seconds at most, since bash does not tell here of a
  # rank whose end it has noticed while it waited for something else.
  kill -0 "$tick" 2>/dev/null || { sleep 2 >/dev/null 2>&1 & tick=$!; }
  wait "${any:-$tick}" 2>/dev/null
  for rank in "${!ranks[@]}"; do
    kill -0 "${ranks[rank]}" 2>/dev/null && continue
    wait "${ranks[rank]}" 2>/dev/null
    ended=$?
    unset "ranks[$rank]"
    [ $ended -eq 0 ] && continue
    said=$logs/$rank.log
    case $ended in 2 | 126 | 127) said=$(tail -n 1 "$said") ;; esac
    [ $ended -eq 75 ] || echo "rank $rank on ${hosts[rank]} ended with status $ended: $said" >&2
    if again $ended; then ended=75; elif [ $ended -ge 126 ]; then ended=2; fi
    # 75 is the least of it: the others end so when they lose one.
    if [ $status -eq 0 ] || [ $status -eq 75 ]; then status=$ended; fi
    deadline=${deadline:-$((SECONDS + ${GRACE:-60}))}
  done
  if [ -n "$deadline" ] && [ ${#ranks[@]} -gt 0 ] && [ $SECONDS -ge "$deadline" ]; then
    echo "ranks ${!ranks[*]} did not end by themselves" >&2
    end_at_once
    deadline=''
  fi
done
kill "$tick" 2>/dev/null
sleep 0.2 # for the last lines of rank 0
kill -KILL "$tail"
rm -f "$logs"/*".$me.pid" ${own_secret:+"$own_secret"}
# After a mistake that began nothing, nothing stays. What the ranks had to say has been shown.
if [ $status -eq 2 ] && [ -n "$fresh" ] && [ "$(ls -A "$run_dir")" = ranks ]; then
  rm -f "$logs"/*.log && rmdir "$logs" "$run_dir"
fi
exit $status
