#!/usr/bin/env bash
# A job for OAR: one process on each host. Submit it in the repository's root, with a name:
#
#   oarsub -S -n NAME "launch/oar.sh --config configs/acrobot.py [train options]"
#   oarsub -S -n NAME "launch/oar.sh sweep --config configs/acrobot.py [sweep options]"
#
# The run directory is runs/NAME. Not the job's number: that changes when OAR submits the job again.
# Look after it with
#
#   oarstat -u                       waiting (W), running (R), ended (T), killed (E)
#   tail -f OAR.NAME.*.stdout        what rank 0 says; all ranks: runs/NAME/ranks
#   oardel NUMBER                    ends it for good; the same oarsub line goes on with it later
#
# -S makes oarsub read the lines below that begin with #OAR. Edit them: options on the command line
# do not replace them (a second -l, for example, means "one or the other"). Two whole hosts:
#OAR -l nodes=2,walltime=2:00:00
# Best-effort: on whatever is free, until a job with a right to the hosts wants them.
#OAR -t besteffort
# Idempotent: OAR submits the job again after it was killed for such a job, and also when it ends
# with status 99 after more than a minute, as this script does when it was stopped or lost a host.
#OAR -t idempotent
# So many seconds before it is killed, for such a job or for its walltime, the job gets a signal,
# saves and ends. Without this line a best-effort job is killed without asking, and goes on from its
# last checkpoint (--checkpoint_every); one at the end of its walltime does not go on by itself.
#OAR --checkpoint 120
#
# Signals, logs and exit status: launch/ranks.sh.

# shellcheck source=launch/again.sh
source launch/again.sh || exit 2
if [ -z "$OAR_JOB_NAME" ]; then
  echo 'a name, please: oarsub -S -n NAME "launch/oar.sh …"; the run directory will be runs/NAME' >&2
  exit 2
fi
run_dir=runs/$OAR_JOB_NAME
for word in "$@"; do
  case $word in
    --run_dir | --run_dir=* | --resume | --resume=*)
      echo "error: the run directory is that of the job's name, $run_dir; leave $word out" >&2
      exit 2
      ;;
  esac
done
mapfile -t hosts < <(sort -u "${OAR_NODEFILE:?only in an OAR job}") # it has a line for each core
before=$(checkpoints "$run_dir")
asked=''

# shellcheck disable=SC2317 # called by the trap
stop() {
  trap '' TERM USR1 USR2 # OAR repeats its signal, and a second one would end the ranks at once
  asked=yes
  [ -z "$!" ] || kill -TERM $! # which is known before it is in a variable
}
trap stop TERM USR1 USR2 # OAR's is USR2, unless `oarsub --signal` says otherwise

# oarsh hands no variables on; ranks.sh writes them into the command line. A rank dies with its
# terminal (-tt), also where OAR does not kill all that a job has left.
REMOTE_SHELL="oarsh -tt -q" launch/ranks.sh "${hosts[@]}" -- "$@" --run_dir "$run_dir" &
ranks=$!
wait_for "$ranks"
status=$?

again "$status" || exit "$status"
# Nobody asked, and nothing was saved: it might fail and come back for ever.
if [ -z "$asked" ] && [ "$(checkpoints "$run_dir")" = "$before" ]; then exit "$status"; fi
while [ $SECONDS -le 61 ]; do sleep 1; done # OAR submits no shorter job again
exit 99
