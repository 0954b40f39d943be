# The exit statuses of the training command, for the launchers, which read this file.
# README.md has them in a table.

# Whether it makes sense to start again what has ended with status $1.
again() {
  case $1 in
    0) return 1 ;;                # done
    1 | 2 | 3 | 74) return 1 ;;   # a bug, a mistake, every agent failed, input/output
    126 | 127) return 1 ;;        # the shell found no such command: the wrong Python
  esac                            # 75, or a signal's: stopped and saved, or a process was lost
}
