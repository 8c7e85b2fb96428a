"""A disk that is full, read-only, slow or damaged: the tier goes off with a reason and comes back by itself."""

import asyncio
import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagoda_sidecar.disk import files
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.settings import DiskSettings
from pagoda_sidecar.disk.tier import DiskTier
from tests.sidecar.disk.machine import CHANGING, Machine, always, at_change, failing, sleeping, small_disk
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

CAP = 500_000
SLOW = DiskSettings(
    read_seconds=0.05, write_seconds=0.1, first_probe_seconds=0.02, max_probe_seconds=0.05, max_late_reads=2
)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pagoda-disk-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


async def fill(tier: DiskTier, folder: Path, num_chains: int = 12, first: int = 0) -> None:
    for seed in range(first, first + num_chains):
        await tier.store_all(records(chain(3, seed)))
        assert folder_bytes(folder) <= CAP
        tier.check_integrity()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_one_failure_at_any_change_costs_no_more_than_what_was_being_stored(
    folder: Path, machine: Machine, code: int
) -> None:
    async with disk_tier(folder, CAP) as tier:
        await fill(tier, folder)
        num_changes = len(machine.calls)
    assert num_changes > 50
    for number in range(0, num_changes, 1 if code == errno.EIO else 3):
        for path in folder.iterdir():  # noqa: ASYNC240 - a folder in memory
            path.unlink()
        machine.accident = at_change(machine, number, failing(code))
        damage: list[str] = []
        async with disk_tier(folder, CAP, damage=damage) as tier:
            await fill(tier, folder)
            await until(tier.enabled)
            last = chain(3, 100)
            await until(lambda tier=tier: not tier._writing.locked())
            stored = await tier.store_all(records(last))
            if not all(stored):  # the failure came only now
                await until(tier.enabled)
                assert await tier.store_all(records(last)) == [True] * 3
            known = [entry.link.address for entry in tier.index]
            assert all(await fetch(tier, known)), f"a record is lost that was there, failed at {number}"
            assert folder_bytes(folder) <= CAP
        async with disk_tier(folder, CAP, damage=damage) as tier:
            assert {entry.link.address for entry in tier.index} >= set(known)
            assert all(await fetch(tier, known))
        assert damage == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (errno.EROFS, "read-only"), (errno.EIO, "Input/output")],
)
async def test_a_disk_that_takes_nothing_is_off_with_its_reason_until_it_takes_something(
    folder: Path, machine: Machine, code: int, reason: str
) -> None:
    async with disk_tier(folder, CAP) as tier:
        told: list[str] = []
        tier.on_changed = lambda: told.append(tier.off_reason)
        await tier.store_all(records(chain(3, 1)))
        machine.accident = always(("pwritev", "allocate", "unlink", "truncate"), failing(code))
        assert await tier.store_all(records(chain(3, 2))) == [False] * 3
        assert reason in tier.off_reason
        assert await fetch(tier, chain(3, 1)) == [False] * 3
        assert not tier.is_rooted(chain(3, 1)[0])
        await asyncio.sleep(0.1)  # some probes fail
        assert reason in tier.off_reason
        machine.accident = lambda name, arguments: None
        await until(tier.enabled)
        assert await fetch(tier, chain(3, 1)) == [True] * 3
        assert await tier.store_all(records(chain(3, 2))) == [True] * 3
        assert len(told) == 2, "once off, once on"
        assert reason in told[0]


async def test_a_really_full_disk_is_off_and_back_when_there_is_room(folder: Path, machine: Machine) -> None:
    disk = folder / "disk"
    disk.mkdir()
    with small_disk(machine, disk, 400_000):
        tier = DiskTier(disk, 1_000_000, Chains(), settings=QUICK)
        tier.start()
        tier.set_namespace(NAMESPACE, PAYLOAD_BYTES)
        await until(tier.enabled)
        stored = 0
        for seed in range(20):
            stored += sum(await tier.store_all(records(chain(6, seed))))
            if "full" in tier.off_reason:
                break
        assert "full" in tier.off_reason
        assert stored > 0
        (disk / "pagoda-0000000000000001.segment").unlink()
        (disk / "pagoda-0000000000000002.segment").unlink()
        await until(tier.enabled)
        assert await tier.store_all(records(chain(6, 50))) == [True] * 6
        assert await fetch(tier, chain(6, 50)) == [True] * 6
        await fetch(tier, chain(6, 0))  # what is gone is a miss
        tier.check_integrity()
        await tier.close()


async def test_what_a_failed_write_leaves_behind_is_cut_off_and_never_found_by_a_restart(
    folder: Path, machine: Machine
) -> None:
    kept, lost = chain(2, 1), chain(3, 2)
    async with disk_tier(folder, CAP) as tier:
        assert all(await tier.store_all(records(kept)))
        (segment,) = segment_paths(folder)
        num_allocated = segment.stat().st_size

        def fail_after_writing(name: str, arguments: tuple[Any, ...]) -> None:
            if name == "pwritev":  # all of it arrives, and the disk says that it did not
                machine.accident = lambda name, arguments: None
                files.pwritev(*arguments)
                raise OSError(errno.EIO, "Input/output error")

        machine.accident = fail_after_writing
        assert not any(await tier.store_all(records(lost)))
        await until(tier.enabled)
        await until(lambda: segment.stat().st_size < num_allocated)
        assert segment.stat().st_size == 2 * STRIDE, "the records that were acknowledged, and nothing else"
    async with disk_tier(folder, CAP) as tier:
        assert await fetch(tier, [*kept, *lost]) == [True, True, False, False, False]


async def test_short_writes_are_continued(folder: Path, machine: Machine) -> None:
    for size in (5000, 4096, 12_289):
        machine.max_write_bytes = size
        async with disk_tier(folder, CAP) as tier:
            assert await tier.store_all(records(chain(3, size))) == [True] * 3
            assert await fetch(tier, chain(3, size)) == [True] * 3


async def test_a_slow_write_switches_off_and_what_it_was_doing_comes_to_nothing(folder: Path, machine: Machine) -> None:
    released: list[bool] = []
    async with disk_tier(folder, CAP, SLOW) as tier:
        await tier.store_all(records(chain(2, 1)))
        machine.accident = always(("pwritev",), sleeping(0.4))
        began = asyncio.get_running_loop().time()
        assert await tier.store_all(records(chain(1, 2)), lambda: released.append(True)) == [False]
        assert asyncio.get_running_loop().time() - began < 4.0
        assert "slow" in tier.off_reason
        assert not released, "a thread still reads the payload"
        machine.accident = lambda name, arguments: None
        await until(tier.enabled)
        assert released == [True]
        assert not tier.has(chain(1, 2)[0])
        assert await tier.store_all(records(chain(1, 2))) == [True]
        assert await fetch(tier, [*chain(2, 1), *chain(1, 2)]) == [True] * 3
        assert folder_bytes(folder) <= CAP


async def test_late_reads_are_misses_and_several_switch_off(folder: Path, machine: Machine) -> None:
    addresses = chain(3, 1)
    async with disk_tier(folder, CAP, SLOW) as tier:
        await tier.store_all(records(addresses))
        machine.accident = always(("preadv",), sleeping(0.3))
        assert await fetch(tier, addresses) == [False] * 3
        assert tier.enabled(), "once is no rule"
        assert tier.has(addresses[0]), "late is not lost"
        assert await fetch(tier, addresses) == [False] * 3
        assert "slow" in tier.off_reason
        machine.accident = lambda name, arguments: None
        await until(tier.enabled)
        assert await fetch(tier, addresses) == [True] * 3


async def test_a_destination_is_given_back_only_when_no_thread_writes_to_it(folder: Path, machine: Machine) -> None:
    async with disk_tier(folder, CAP, SLOW) as tier:
        await tier.store_all(records(chain(1, 1)))
        machine.accident = always(("preadv",), sleeping(0.3))
        released: list[int] = []
        view = memoryview(bytearray(PAYLOAD_BYTES))
        await tier.fetch(chain(1, 1), [view], lambda number, header: None, released.append)
        assert released == []
        assert not await tier.idle(0.01)
        assert await tier.idle(5.0)
        await until(lambda: released == [0])


async def test_a_sector_that_cannot_be_read_costs_its_records_alone(folder: Path, machine: Machine) -> None:
    async with disk_tier(folder, CAP) as tier:
        await tier.store_all(records(chain(3, 1)))
        await tier.store_all(records(chain(3, 2)))
        machine.accident = always(("preadv",), failing(errno.EIO))
        assert await fetch(tier, chain(3, 1)) == [False] * 3
        machine.accident = lambda name, arguments: None
        assert tier.enabled()
        assert not tier.has(chain(3, 1)[0]), "it is not promised again"
        assert await fetch(tier, chain(3, 2)) == [True] * 3


async def test_a_disk_that_is_dead_at_start_is_a_reason_and_is_tried_again(folder: Path, machine: Machine) -> None:
    machine.accident = always((*CHANGING, "names", "stat"), failing(errno.EIO))
    tier = DiskTier(folder, CAP, Chains(), settings=QUICK)
    tier.start()
    tier.set_namespace(NAMESPACE, PAYLOAD_BYTES)
    await until(lambda: "Input/output" in tier.off_reason)
    assert await tier.store_all(records(chain(1))) == [False]
    machine.accident = lambda name, arguments: None
    await until(tier.enabled)
    assert await tier.store_all(records(chain(1))) == [True]
    await tier.close()
