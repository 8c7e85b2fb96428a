"""Makes the system calls of the disk tier fail; all of them go through `pagoda_sidecar.disk.files`.

an errno's name   the call fails with it and does nothing
short             half of the bytes, and the call says so
torn_kill         half of the bytes, then SIGKILL; of a call without bytes: SIGKILL
slow              the call takes long
flip              one bit of what was read is another one
"""

import errno
import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from pagoda_sidecar.disk import files, tier
from pagoda_sidecar.disk.settings import DiskSettings
from tests.support.faults.control import Control, DiskFault

SLOW_SECONDS = 0.3
PAGE_BYTES = 4096
# Shorter than a slow call: the tier must notice one, and try again soon
SETTINGS = {"read_seconds": 0.2, "write_seconds": 0.25, "first_probe_seconds": 0.05, "max_probe_seconds": 0.3}
DISK_FAULTS = (
    DiskFault("pwritev", "ENOSPC"),
    DiskFault("pwritev", "EIO", 0.3),
    DiskFault("pwritev", "EROFS"),
    DiskFault("pwritev", "short", 0.5),
    DiskFault("pwritev", "torn_kill", 0.05),
    DiskFault("pwritev", "slow", 0.3),
    DiskFault("preadv", "EIO", 0.3),
    DiskFault("preadv", "short", 0.5),
    DiskFault("preadv", "slow", 0.3),
    DiskFault("preadv", "flip", 0.5),
    DiskFault("open_file", "EIO", 0.5),
    DiskFault("open_file", "EMFILE", 0.5),
    DiskFault("allocate", "ENOSPC"),
    DiskFault("truncate", "EIO"),
    DiskFault("sync", "EIO"),
    DiskFault("sync", "torn_kill"),
    DiskFault("unlink", "EIO"),
    DiskFault("unlink", "torn_kill", 0.2),
)


def install(control: Control) -> None:
    """Hook each call that can fail, and shorten the tier's times."""
    tier.DiskSettings = functools.partial(DiskSettings, **SETTINGS)  # type: ignore[assignment,misc,arg-type]
    for call in sorted({fault.call for fault in DISK_FAULTS}):
        setattr(files, call, _failing(control, call, getattr(files, call)))


def _failing(control: Control, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(*arguments: Any) -> Any:
        for fault in control.disk_faults(call):
            if not control.is_due(fault.chance):
                continue
            control.done(f"disk.{call}.{fault.kind}")
            if fault.kind == "slow":
                time.sleep(SLOW_SECONDS)
            elif fault.kind == "torn_kill":
                if call == "pwritev":
                    _half(original, *arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == "short":
                return _half(original, *arguments)
            elif fault.kind == "flip":
                return _flipped(control, original, *arguments)
            else:
                number = getattr(errno, fault.kind)
                raise OSError(number, os.strerror(number))
        return original(*arguments)

    return hooked


def _half(original: Callable[..., Any], descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    """Do the first half of a read or write, cut at a page where there is more than one, as O_DIRECT wants it."""
    half = sum(len(buffer) for buffer in buffers) // 2
    left = half // PAGE_BYTES * PAGE_BYTES or max(1, half)
    first = []
    for buffer in buffers:
        first.append(memoryview(buffer)[:left])
        left -= len(first[-1])
    return int(original(descriptor, [part for part in first if len(part)], offset))


def _flipped(
    control: Control, original: Callable[..., Any], descriptor: int, buffers: Sequence[Any], offset: int
) -> int:
    """Read, and flip one bit of what came."""
    num_bytes = int(original(descriptor, buffers, offset))
    byte = control.draw(max(1, num_bytes))
    for buffer in buffers:
        if byte < len(buffer):
            buffer[byte] ^= 1 << control.draw(8)
            break
        byte -= len(buffer)
    return num_bytes
