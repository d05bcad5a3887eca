"""Starts one process of the benchmark: pinned to a core, and ended when the benchmark ends, however it ends.

`python -m tests.bench.launch PARENT_PID CORE COMMAND...` (CORE `-`: not pinned) becomes the command on Linux.
"""

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Arrange the end and the core, then become the command."""
    parent, core, *command = sys.argv[1:]
    if core != "-":
        os.sched_setaffinity(0, {int(core)})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == int(parent):  # otherwise it ended before prctl could watch it
            os.execvp(command[0], command)
        return
    child = subprocess.Popen(command)
    while os.getppid() == int(parent):
        try:
            sys.exit(child.wait(timeout=1))
        except subprocess.TimeoutExpired:
            continue
    child.terminate()


if __name__ == "__main__":
    main()
