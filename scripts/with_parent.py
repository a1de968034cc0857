"""Run a command that is ended, by SIGTERM, when the process that started it ends in whatever way, SIGKILL among them.

    python scripts/with_parent.py PID COMMAND ...

PID is that process's. Where the system is not Linux, the command is just run.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; it outlives the exec

if __name__ == "__main__":
    _, parent, *command = sys.argv
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(parent):  # it may have ended before
        os.execvp(command[0], command)
