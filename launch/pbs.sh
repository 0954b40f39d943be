#!/usr/bin/env bash
# Trains on the hosts of a PBS job (OpenPBS, PBS Professional, Torque), one process on each. From
# the repository's root:
#
#   qsub -l select=2:ncpus=8 -l walltime=4:00:00 -v OPTIONS="--config configs/acrobot.py" launch/pbs.sh
#
# OPTIONS="sweep --config configs/acrobot.py ..." searches, with the options of jaxrl_scale.sweep;
# with :ngpus=4 in the select for GPUs; Torque: -l nodes=2:ppn=8. qsub sends this file away, so it
# finds everything from the folder where qsub was called. The run directory is runs/pbs-<job>, or
# --run_dir among the OPTIONS; the job that is run again (-r y, after a lost host) resumes it, and
# so does a new one with the same --run_dir, on any number of hosts that divides num_shards or
# num_seeds.
#
# Signals, logs and exit status: launch/ranks.sh. `qsig -s TERM JOB`, and PBS itself some seconds
# before it kills a job (kill_delay), make all save.
#
#PBS -N jaxrl_scale
#PBS -j oe
#PBS -r y

cd "${PBS_O_WORKDIR:-.}" || exit 2
mapfile -t hosts < <(awk '!seen[$0]++' "${PBS_NODEFILE:?only in a PBS job}")

# PBS's own remote shell keeps the processes within the job; it takes words, not a command line.
if command -v pbs_tmrsh >/dev/null; then
  tmrsh() { exec pbs_tmrsh "$1" bash -c "$2"; }
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
