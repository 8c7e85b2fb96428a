"""Outlives `pagoda up` by a moment and clears up after it, even after SIGKILL: guard.py PATH …

The kernel's death signal (launch.py) does not reach everything: a program that changes its user, as memcached does
under root, loses it, and what a part itself has started never had it. So the guard knows the process group of each
part: `+<group>` and `-<group>` come in as lines, the end of the input is the death of `pagoda up`. Then the groups
are killed and the paths removed. Runs with `python -I -S`: it may import nothing but the standard library.
"""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterable

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # meant for `pagoda up`, which then tells us


def _guard(lines: Iterable[str], paths: list[str]) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in lines:
        sign, group = line[:1], int(line[1:])
        (groups.add if sign == "+" else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    _guard(iter(sys.stdin.readline, ""), sys.argv[1:])
