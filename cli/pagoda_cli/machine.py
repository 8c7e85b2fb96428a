"""What this machine offers: cores, memory, room in /dev/shm. Text of the kernel in, numbers out.

A container's share counts, not the machine's size: the control group's limits (version 1 or 2) are read for the group
this process is in and for every group above it, and the smallest wins.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SHARED_MEMORY = Path("/dev/shm")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 2**60  # version 1 writes "no limit" as a number near 2**63


@dataclass(frozen=True)
class GroupMemory:
    """The memory readings of one control group."""

    limit_bytes: int
    usage_bytes: int
    reclaimable_bytes: int
    """Page cache that is given back under pressure."""

    @property
    def available_bytes(self) -> int:
        """What processes of the group may still take."""
        return max(0, self.limit_bytes - max(0, self.usage_bytes - self.reclaimable_bytes))


@dataclass(frozen=True)
class Machine:
    """Everything a plan needs to know of the machine."""

    num_cores: int
    available_bytes: int | None
    """Memory that can be had without swapping; None: the kernel does not say."""
    group_available_bytes: int | None
    """What the control group still allows; None: it has no limit."""
    shared_memory_bytes: int
    """Free room in /dev/shm; 0: there is none, or it is not ours."""
    memcached: str | None
    """The program's path; None: it is not installed."""


def read_machine() -> Machine:
    """Read this machine now."""
    groups = parse_groups(_text(Path("/proc/self/cgroup")) or "")
    return Machine(
        num_cores=usable_cores(len(os.sched_getaffinity(0)), _cpu_quota(groups)),
        available_bytes=parse_available(_text(Path("/proc/meminfo")) or ""),
        group_available_bytes=min((memory.available_bytes for memory in _group_memories(groups)), default=None),
        shared_memory_bytes=free_bytes(SHARED_MEMORY),
        memcached=shutil.which("memcached"),
    )


def usable_cores(num_allowed: int, quota_cores: float | None) -> int:
    """Return the whole cores a process may keep busy: a quota of 1.5 keeps one busy, and there is always one."""
    return max(1, num_allowed if quota_cores is None else min(num_allowed, int(quota_cores)))


def parse_available(meminfo: str) -> int | None:
    """Return `MemAvailable` of /proc/meminfo in bytes, None if it is not there."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def parse_groups(text: str) -> dict[str, PurePosixPath]:
    """Return the path of this process's control group by controller; "" is version 2's one hierarchy."""
    groups: dict[str, PurePosixPath] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    return groups


def parse_limit(text: str | None) -> int | None:
    """Return a memory limit as either version writes it, None where there is none."""
    if text is None or not text.strip().isdecimal() or int(text) >= _UNLIMITED_BYTES:
        return None
    return int(text)


def parse_cpu_quota(cpu_max: str | None, quota: str | None = None, period: str | None = None) -> float | None:
    """Return the cores of version 2's `cpu.max`, or of version 1's two files; None where there is no limit."""
    if cpu_max is not None:
        quota, _, period = cpu_max.strip().partition(" ")
    if not quota or not period or not quota.strip().isdecimal():
        return None
    return int(quota) / int(period)


def _cpu_quota(groups: dict[str, PurePosixPath]) -> float | None:
    found = [parse_cpu_quota(_text(folder / "cpu.max")) for folder in _folders(groups, "")]
    for folder in _folders(groups, "cpu"):
        found.append(parse_cpu_quota(None, _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")))
    return min((quota for quota in found if quota is not None), default=None)


def _group_memories(groups: dict[str, PurePosixPath]) -> Iterator[GroupMemory]:
    for controller, limit, usage, reclaimable in (
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _folders(groups, controller):
            limit_bytes = parse_limit(_text(folder / limit))
            if limit_bytes is not None:
                statistics = _text(folder / "memory.stat") or ""
                yield GroupMemory(
                    limit_bytes, int(_text(folder / usage) or 0), parse_statistic(statistics, reclaimable)
                )


def parse_statistic(text: str, name: str) -> int:
    """Return one number of a `memory.stat`, 0 if it is not there."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0)


def _folders(groups: dict[str, PurePosixPath], controller: str) -> Iterator[Path]:
    """Yield the folder of the group and of every group above; inside a container only some of them can be seen."""
    if controller in groups:
        root = _CGROUP_ROOT / controller
        path = root / groups[controller].relative_to("/")
        while path != root:
            yield path
            path = path.parent
        yield root


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except OSError:
        return None


def free_bytes(folder: Path) -> int:
    """Return the room for files in `folder`, 0 where this user cannot write."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return 0
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
