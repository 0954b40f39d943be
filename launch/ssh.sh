#!/usr/bin/env bash
# Trains on several hosts by ssh, one process on each:
#
#   launch/ssh.sh HOST... -- --config configs/acrobot.py [train options]
#   launch/ssh.sh HOST... -- sweep --config configs/acrobot.py --run_dir D [sweep options]
#
# In the repository's root, which all hosts must have under the same path (a shared file system), as
# they must the run directory. Each HOST must be reached without a password (try `ssh HOST true`),
# and its name must mean the same to all hosts: the first is where they meet.
#
#   SSH="ssh -F file -l somebody"   another client or other options
#
# Ctrl-C makes all save and end. Started again with the same --run_dir, they go on. Signals, logs
# and exit status: launch/ranks.sh.

# -tt: a rank has a terminal, which goes, and it with it, when the connection does.
# Alive: a host that is gone without a word is noticed within half a minute.
export REMOTE_SHELL="${SSH:-ssh} -tt -o LogLevel=ERROR -o BatchMode=yes -o ServerAliveInterval=10"
exec "$(dirname "$0")/ranks.sh" "$@"
