"""The folders that engines and sidecars share, in memory if there is room.

    <base>/pagoda-<random>/owner      locked by the run for as long as it lives
    <base>/pagoda-<random>/<pod>/     one volume per pod

A run that was killed with its guard leaves its folder behind. The next run removes it, because nobody holds the lock:
unlike a process id that can be asked from any PID namespace and is never given to somebody else.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pagoda_cli.problems import RefusedError
from pagoda_protocol.pool.quantities import short_bytes

PREFIX = "pagoda-"
SOCKET_NAME = "tier.sock"
MAX_SOCKET_PATH_BYTES = 107  # sun_path holds 108 with the ending zero
_OWNER = "owner"


def temporary_folder() -> Path:
    """Return where volumes go when memory has no room for them."""
    return Path(tempfile.gettempdir())


def room_problem(base: Path, free_bytes: int, needed_bytes: int) -> str | None:
    """Return what is wrong if `base` has no room for all volumes."""
    if needed_bytes <= free_bytes:
        return None
    what = f"the RAM tiers' files need {short_bytes(needed_bytes)} of {base}, which has {short_bytes(free_bytes)} free"
    return f"spec.cache.ram.size: {what}; lower it or spec.replicas, or set TMPDIR to a folder with more room"


def socket_problem(base: Path, longest_pod_name: str) -> str | None:
    """Return what is wrong if a Unix socket below `base` would have a path that the kernel does not take."""
    path = base / f"{PREFIX}{'0' * 8}" / longest_pod_name / SOCKET_NAME
    length = len(os.fsencode(path))
    if length <= MAX_SOCKET_PATH_BYTES:
        return None
    what = f"{base}: socket paths below it have {length} bytes, more than the {MAX_SOCKET_PATH_BYTES} that are allowed"
    return f"TMPDIR: {what}; give a shorter folder"


@contextlib.contextmanager
def volume_folder(base: Path) -> Iterator[Path]:
    """Make a folder for this run's volumes; remove it at the end.

    Raises:
        RefusedError: `base` cannot be written to.
    """
    folder = base / f"{PREFIX}{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700)
        owner = _own(folder)
    except OSError as error:
        raise RefusedError([f"TMPDIR: {base}: {error.strerror}; give a folder you may write to"]) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _own(folder: Path) -> int:
    """Lock the owner file before it has its name, so that nobody ever finds it unlocked; return its descriptor."""
    new = folder / f".{_OWNER}"
    owner = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX)
    new.rename(folder / _OWNER)
    return owner


def remove_leftovers(bases: tuple[Path, ...]) -> list[Path]:
    """Remove the volume folders of runs that are dead; return them."""
    removed = []
    for base in dict.fromkeys(bases):
        for folder in base.glob(f"{PREFIX}*"):
            if _is_left_over(folder):
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _is_left_over(folder: Path) -> bool:
    try:
        status = folder.lstat()
        if status.st_uid != os.getuid() or folder.is_symlink() or not folder.is_dir():
            return False
        return _is_unlocked(folder / _OWNER)
    except OSError:
        return False


def _is_unlocked(owner: Path) -> bool:
    try:
        descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # it is just being made, or is not ours
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
