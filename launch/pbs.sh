#!/usr/bin/env bash
# Trains on the hosts of a PBS job (OpenPBS, PBS Professional), one process on each. From the
# repository's root:
#
#   qsub -N jaxrl_scale -j oe -r y -l select=2:ncpus=8 -l place=scatter -l walltime=4:00:00 \
#     -- "$PWD/launch/pbs.sh" --config configs/acrobot.py
#
# The word sweep before --config searches, with the options of jaxrl_scale.sweep; :ngpus=4 in the
# select is for GPUs. The run directory is runs/pbs-<job>, or --run_dir.
#
# `qsig -s TERM JOB`, `qdel JOB` and the end of the walltime make all save and end, if that takes less than
# kill_delay (10 seconds, unless the administrator says otherwise). A job that PBS runs again (-r y), after
# `qrerun` or the loss of its first host, goes on. One that has lost another host ends with status 75. A new
# job with the same --run_dir goes on, too, on any number of hosts that divides num_shards or num_seeds.
# Logs and exit status: launch/ranks.sh.
#
# The two dashes matter. Without them, as in `qsub -v OPTIONS="--config configs/acrobot.py" launch/pbs.sh`,
# PBS puts a login shell above this script. A signal ends that shell, and with it the job, before the run
# is saved: it then goes on from its last checkpoint. (Torque knows no dashes, and was not tried.)
#
#PBS -N jaxrl_scale
#PBS -j oe
#PBS -r y

cd "${PBS_O_WORKDIR:-.}" || exit 2
mapfile -t hosts < <(awk '!seen[$0]++' "${PBS_NODEFILE:?only in a PBS job}")

# Behind two dashes there is no login shell, which would have PBS's own programs on its path.
conf=${PBS_CONF_FILE:-/etc/pbs.conf}
[ ! -r "$conf" ] || PATH=$PATH:$(source "$conf" && echo "$PBS_EXEC")/bin
# PBS's own remote shell keeps the processes within the job; it takes words, not a command line.
if command -v pbs_tmrsh >/dev/null; then
  # PBS sends its signals to these, too, which should live as long as the process that they started.
  tmrsh() { trap '' TERM HUP INT USR1 USR2 && exec pbs_tmrsh "$1" bash -c "$2"; }
  export -f tmrsh
  export REMOTE_SHELL=tmrsh
else
  export REMOTE_SHELL="${SSH:-ssh} -tt -o LogLevel=ERROR -o BatchMode=yes -o ServerAliveInterval=10"
fi
# shellcheck disable=SC2086 # options are words
set -- ${OPTIONS:-} "$@"
command=()
case $1 in train | sweep) command=("$1") && shift ;; esac
exec launch/ranks.sh "${hosts[@]}" -- "${command[@]}" --run_dir "runs/pbs-${PBS_JOBID%%.*}" "$@"
