"""The keeper of the arena: what it says while the file is being allocated."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from pagoda_sidecar.arena import file as arena_file
from pagoda_sidecar.arena_keeper import ArenaKeeper

SIZE = 40 * arena_file.CHUNK_BYTES // 16


async def made(volume: Path, size: int) -> tuple[ArenaKeeper, list[tuple[float, str]]]:
    """Start a keeper and wait until its arena is there or given up."""
    keeper, told, ended = ArenaKeeper(volume, size), [], asyncio.Event()
    keeper.on_progress = lambda: told.append((keeper.allocated_ratio, keeper.off_reason))
    keeper.on_ready = keeper.on_failed = ended.set
    async with asyncio.timeout(60):
        await keeper.start()
        await ended.wait()
    return keeper, told


async def test_allocation_tells_its_progress_and_ends_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_file, "CHUNK_BYTES", SIZE // 40)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        keeper, told = await made(Path(folder), SIZE)
        ratios = [ratio for ratio, _ in told]
        assert ratios == sorted(set(ratios))
        assert len(ratios) == 9  # each tenth but the last, whose news is that it is ready
        assert [reason for _, reason in told] == [
            f"the arena is being allocated ({round(100 * ratio)} %)" for ratio in ratios
        ]
        assert (keeper.allocated_ratio, keeper.off_reason) == (1.0, "")
        assert (Path(folder) / "arena").stat().st_size == SIZE
        await keeper.close()
        again, told = await made(Path(folder), SIZE)
        assert (again.allocated_ratio, told) == (1.0, [])  # kept, not made anew
        await again.close()


async def test_a_failed_allocation_leaves_a_reason_and_nothing_allocated() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        keeper, told = await made(Path(folder), 2**50)
        assert (keeper.arena, keeper.allocated_ratio, told) == (None, 0.0, [])
        assert "cache.ram.size" in keeper.off_reason
        await keeper.close()
