#!/usr/bin/env bash
# Gives a job of launch/slurm.sbatch another number of nodes:
#
#   launch/resize.sh JOB NODES
#
# A running one saves and goes on, as the same job, when so many nodes are free; one that waits will
# start with so many. The learning is the same, to the last bit on CPUs. The number of processes must
# divide num_shards (8, unless the config says otherwise) or num_seeds.

job=$1 nodes=$2
if [ $# -ne 2 ] || ! [ "$nodes" -gt 0 ] 2>/dev/null; then
  echo "usage: $0 JOB NODES" >&2
  exit 2
fi
is() { scontrol --oneliner show job "$job" | grep -o " $1=[^ ]*" | head -n 1 | cut -d= -f2; }

if [ "$(is JobState)" = RUNNING ]; then
  scancel --batch --signal=USR2 "$job" || exit # the script has the ranks save, and requeues on hold
  echo "job $job saves …"
  while [[ $(is JobState) =~ RUNNING|COMPLETING ]]; do sleep 1; done
fi
if [ "$(is JobState)" != PENDING ]; then
  echo "job $job has ended: $(is JobState)" >&2
  exit 1
fi
# And all that Slurm had worked out from the number of nodes.
tasks=$((nodes * $(is NtasksPerN:B:S:C | cut -d: -f1)))
scontrol update "jobid=$job" "numnodes=$nodes-$nodes" \
  "numtasks=$tasks" "numcpus=$((tasks * $(is CPUs/Task)))" &&
  { [ "$(is Priority)" != 0 ] || scontrol release "$job"; } &&
  # Else it waits for two minutes. In the second it was requeued in, its nodes would refuse it.
  scontrol update "jobid=$job" starttime=now+5 &&
  echo "job $job goes on with $nodes node(s)"
