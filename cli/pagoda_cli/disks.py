"""The room that disk tiers need, and what those of an earlier run hold of it already or hold in vain."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from pagoda_cli.machine import free_bytes
from pagoda_protocol.pool.quantities import MEBI, format_bytes
from pagoda_protocol.pool.spec import InferencePool


def disk_problem(pool: InferencePool, disks: Path) -> str | None:
    """Return `path: what is wrong; what would be right` if the disk tiers of all pods do not fit."""
    disk = pool.cache.disk
    if disk is None:
        return None
    base = next(folder for folder in (disks, *disks.parents) if folder.exists())
    held = sum(file.lstat().st_blocks * 512 for file in disks.rglob("*") if file.is_file()) if disks.exists() else 0
    available, needed = free_bytes(base) + held, pool.replicas * disk.size_bytes
    if needed <= available:
        return None
    what = f"{pool.replicas} × {format_bytes(disk.size_bytes)} do not fit into {disks}, which has {available // MEBI}Mi"
    return f"spec.cache.disk.size: {what}; lower it or spec.replicas, or give a --state with more room"


def remove_unused(pool_name: str, disks: Path, used: Collection[str]) -> list[Path]:
    """Remove the disk tiers of pods that are no more; return them. Hold the state's lock.

    Only folders named `<pool>-<number>` that lie in `disks` and are no links: everything else there is not ours.
    """
    if not disks.is_dir():
        return []
    ours = re.compile(rf"{re.escape(pool_name)}-(?:0|[1-9][0-9]*)")
    kept = {Path(folder) for folder in used}
    unused = [
        folder
        for folder in sorted(disks.iterdir())
        if ours.fullmatch(folder.name) and folder not in kept and folder.is_dir() and not folder.is_symlink()
    ]
    for folder in unused:
        shutil.rmtree(folder)
    return unused
