# What several launchers share, all of which read this file. (It keeps its name: a job of Slurm that was
# submitted before it had more than `again` reads it under this one when it is put back.)

# The Python that the processes run, where the user names none.
[ -n "$PYTHON" ] || { [ -x .venv/bin/python ] && PYTHON=.venv/bin/python || PYTHON=python3; }

# Whether it makes sense to start again what has ended with status $1, an exit status of the training
# command (docs/runs.md has them in a table) or of a shell.
again() {
  case $1 in
    0) return 1 ;;                # done
    1 | 2 | 3 | 74) return 1 ;;   # a bug, a mistake, every agent failed, input/output
    126 | 127) return 1 ;;        # the shell found no such command: the wrong Python
  esac                            # 75, or a signal's: stopped and saved, or a process was lost
}

# Takes the options of the training command, or of a sweep, apart: `config` is --config and its file,
# `run_dir` that of --run_dir or --resume, which sets `resume`, and `options` are all others.
read_options() {
  config=() resume='' options=()
  while [ $# -gt 0 ]; do
    case $1 in
      --config=* | --run_dir=* | --resume=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    esac
    case $1 in
      --config | --run_dir | --resume) # of a variable that is not set, say
        [ -n "$2" ] || { echo "error: $1 should be followed by a path" >&2 && exit 2; }
        ;;
    esac
    case $1 in
      --config) config=("$1" "$2") && shift ;;
      --run_dir) run_dir=$2 && shift ;;
      --resume) run_dir=$2 resume=yes && shift ;;
      *) options+=("$1") ;;
    esac
    shift
  done
  # As the trainer does, which gets it so; a shell does not in --run_dir=~/mine.
  case $run_dir in '~' | '~/'*) run_dir=$HOME${run_dir#'~'} ;; esac
}

# Makes `options` those of a new run in `run_dir`, or of the one that is there, whose config is known.
new_or_resumed() {
  if [ -n "$resume" ] || [ -e "$run_dir/config.json" ]; then
    options=(--resume "$run_dir" "${options[@]}")
  else
    options=("${config[@]}" --run_dir "$run_dir" "${options[@]}")
  fi
}

# A new secret, by which the processes of a run know each other.
secret() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

# The checkpoints in run directory $1; a sweep's are a folder deeper.
checkpoints() { ls -d "$1"/{,*/}checkpoints/* 2>/dev/null; }

# The status with which job $1 of this shell ends. A signal that is trapped ends `wait`, not the job.
wait_for() {
  while kill -0 "$1" 2>/dev/null; do wait "$1"; done
  wait "$1"
}
