"""kill -9 at every change the tier makes to its folder, also in the middle of one (E29)."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.tier import DiskTier
from tests.sidecar.disk.machine import Machine, SwitchedOff, at_change
from tests.sidecar.disk.support import (
    NAMESPACE,
    PAYLOAD_BYTES,
    QUICK,
    STRIDE,
    chain,
    disk_tier,
    fetch,
    folder_bytes,
    records,
    segment_paths,
    until,
)

CAP = 500_000  # 8 segments of 2 records, or 3
HOT = chain(2, seed=99)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pagoda-disk-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


async def live(tier: DiskTier, machine: Machine, folder: Path) -> int:
    """Fill the folder past its cap, with something hot to move; return how many were stored."""
    tier.start()
    tier.set_namespace(NAMESPACE, PAYLOAD_BYTES)
    num_stored = 0
    try:
        await until(lambda: tier.enabled() or machine.is_off)
        for seed in range(11):
            batch = [*records(HOT), *records(chain(3, seed))] if seed == 0 else records(chain(3, seed))
            num_stored += sum(await tier.store_all(batch))
            tier.touch(HOT[-1])
            if not machine.is_off:
                assert folder_bytes(folder) <= CAP
    except SwitchedOff:
        pass
    return num_stored


async def end(tier: DiskTier, machine: Machine) -> None:
    """Let go of a tier whose process is dead."""
    if tier._keeping is not None:
        tier._keeping.cancel()
        with contextlib.suppress(SwitchedOff, asyncio.CancelledError):
            await tier._keeping
    await tier.idle(5.0)
    tier._threads.close()
    machine.restart()


async def test_whatever_a_kill_leaves_behind_is_sound_and_within_the_cap(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(monkeypatch)
    whole = DiskTier(folder, CAP, Chains(), settings=QUICK)
    assert await live(whole, machine, folder) == 35
    assert whole.num_moved > 0, "the story has a compaction"
    calls = list(machine.calls)
    assert calls.count("unlink") > 5
    await end(whole, machine)
    points = [
        (number, share) for number, name in enumerate(calls) for share in ((0, 0.3, 0.7) if name == "pwritev" else (0,))
    ]
    for number, share in points:
        empty(folder)
        await die_once(folder, machine, number, share)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


async def die_once(folder: Path, machine: Machine, number: int, share: float) -> None:
    def die(name: str, arguments: tuple[object, ...]) -> None:
        if name != "pwritev" or share == 0:
            machine.switch_off()
        descriptor, buffers, offset = arguments
        size = sum(map(len, buffers))  # type: ignore[call-overload]
        machine.switch_off((descriptor, buffers, offset), int(size * share))  # type: ignore[arg-type]

    machine.accident = at_change(machine, number, die)
    tier = DiskTier(folder, CAP, Chains(), settings=QUICK)
    await live(tier, machine, folder)
    assert machine.is_off, f"nobody died at {number}"
    acknowledged = {entry.link.address for entry in tier.index}
    await end(tier, machine)
    assert folder_bytes(folder) <= CAP
    damage: list[str] = []
    async with disk_tier(folder, CAP, damage=damage) as again:
        found = {entry.link.address for entry in again.index}
        assert acknowledged <= found, f"killed at {number}, {share}"
        assert folder_bytes(folder) <= CAP
        assert all(await fetch(again, sorted(found)))
        assert await again.store_all(records(chain(5, seed=77))) == [True] * 5
        assert folder_bytes(folder) <= CAP
        found = {entry.link.address for entry in again.index}
    async with disk_tier(folder, CAP, damage=damage) as third:
        assert {entry.link.address for entry in third.index} == found
        assert all(await fetch(third, sorted(found)))
    assert damage == [], "what a kill tears is found at the start, not by who reads it"


async def test_a_last_record_that_power_loss_has_torn_is_cut_off_at_start(folder: Path) -> None:
    addresses = chain(2)
    async with disk_tier(folder, CAP) as tier:
        await tier.store_all(records(addresses))
        (path,) = segment_paths(folder)
        data = bytearray(path.read_bytes())
    data[STRIDE + 4096 + 100] ^= 1
    path.write_bytes(data)
    damage: list[str] = []
    async with disk_tier(folder, CAP, damage=damage) as tier:
        assert await fetch(tier, addresses) == [True, False]
        assert damage == []
        assert path.stat().st_size == STRIDE
