"""Becomes another program after asking the kernel to kill it when `pagoda up` is gone: launch.py PARENT PROGRAM …

A program of its own, and not code run between fork and exec: there any lock that another thread of `pagoda up` held
would stay held for ever. Runs with `python -I -S`: it may import nothing but the standard library.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _launch(parent: int, argv: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the kernel knew of our wish
        os._exit(1)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        os._exit(127)


if __name__ == "__main__":
    _launch(int(sys.argv[1]), sys.argv[2:])
