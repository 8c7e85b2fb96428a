"""Somebody takes segments, or the whole folder, away from under a running tier, or puts something foreign there."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pagoda_sidecar.disk import files
from pagoda_sidecar.disk.chains import RAM, Chains
from pagoda_sidecar.disk.folder import GoneError, SegmentFolder
from pagoda_sidecar.disk.health import BackOff, reason_of
from pagoda_sidecar.disk.layout import EPOCH_NAME, MAX_SEQUENCE, PROBE_NAME, following, segment_name, sequence_of
from pagoda_sidecar.disk.tier import DiskTier
from tests.sidecar.disk.support import (
    CAP,
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

CHAINS = [chain(10, seed) for seed in range(1, 5)]
ALL = [address for one in CHAINS for address in one]
# Looks by itself only when the test wants it to
ASLEEP = replace(QUICK, check_seconds=1000.0)
AWAKE = replace(QUICK, check_seconds=0.02)


async def fill(tier: DiskTier) -> None:
    for one in CHAINS:
        assert await tier.store_all(records(one)) == [True] * 10


def num_known(tier: DiskTier) -> int:
    return sum(tier.index.get(address) is not None for address in ALL)


def offs(tier: DiskTier) -> list[str]:
    """Every reason that is told from now on, but for the index being read."""
    told: list[str] = []

    def note() -> None:
        if tier.off_reason and "index" not in tier.off_reason:
            told.append(tier.off_reason)

    tier.on_changed = note
    return told


async def test_segments_that_were_removed_are_forgotten_with_the_first_read_and_the_tier_stays_on(
    tmp_path: Path,
) -> None:
    async with disk_tier(tmp_path, settings=ASLEEP) as tier:
        told = offs(tier)
        await fill(tier)
        used = tier.used_bytes
        for path in segment_paths(tmp_path):
            path.unlink()
        assert await fetch(tier, ALL[:1]) == [False]
        await until(lambda: num_known(tier) == 0)
        await until(lambda: not tier.index.segments)
        assert not tier.is_rooted(ALL[0])
        assert tier.used_bytes < used / 4
        assert tier.index.num_evictions == 0
        for one in CHAINS:
            assert await fetch(tier, one) == [False] * 10
        await fill(tier)
        assert await fetch(tier, ALL) == [True] * 40
        assert told == []
        assert folder_bytes(tmp_path) <= CAP


async def test_one_segment_that_was_removed_costs_its_own_records(tmp_path: Path) -> None:
    async with disk_tier(tmp_path, settings=ASLEEP) as tier:
        await fill(tier)
        lost = {entry.link.address for entry in tier.index.segments[1].entries}
        segment_paths(tmp_path)[0].unlink()
        came = await fetch(tier, ALL)
        assert {address for address, has_come in zip(ALL, came, strict=True) if not has_come} == lost
        assert await fetch(tier, ALL) == came
        assert tier.enabled()


async def test_a_segment_that_was_cut_is_forgotten_whole_and_what_is_left_of_it_goes(tmp_path: Path) -> None:
    damage: list[str] = []
    async with disk_tier(tmp_path, settings=ASLEEP, damage=damage) as tier:
        told = offs(tier)
        await fill(tier)
        victim = tier.index.segments[2]
        lost = [entry.link.address for entry in sorted(victim.entries, key=lambda entry: entry.offset)]
        path = tmp_path / segment_name(2)
        with path.open("r+b") as file:
            file.truncate(STRIDE + 4096)
        assert await fetch(tier, lost[-1:]) == [False]
        assert not any(tier.has(address) for address in lost)
        await until(lambda: not path.exists() and 2 not in tier.index.segments)
        assert damage == []
        assert told == []


async def test_a_store_into_a_removed_segment_is_refused_and_the_next_one_is_found(tmp_path: Path) -> None:
    async with disk_tier(tmp_path, settings=ASLEEP) as tier:
        told = offs(tier)
        assert await tier.store_all(records(chain(1, 1))) == [True]
        segment_paths(tmp_path)[0].unlink()
        assert await tier.store_all(records(chain(1, 2))) == [False]
        await until(lambda: not tier.has(chain(1, 1)[0]))
        assert await tier.store_all(records(chain(1, 2))) == [True]
        assert await fetch(tier, chain(1, 2)) == [True]
        assert told == []


@pytest.mark.parametrize("does_read", [True, False])
async def test_a_folder_that_was_replaced_is_opened_anew_with_lock_and_epoch(tmp_path: Path, does_read: bool) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    async with disk_tier(folder, settings=ASLEEP if does_read else AWAKE) as tier:
        told = offs(tier)
        await fill(tier)
        tier.chains.add(RAM, *(records(CHAINS[0])[0].header.address, b"r" * 16, 0))
        epoch = tier.epoch
        folder.rename(tmp_path / "old")
        folder.mkdir()
        if does_read:
            assert await fetch(tier, ALL[:1]) == [False]
        await until(lambda: tier.enabled() and tier.epoch != epoch)
        assert num_known(tier) == 0
        assert tier.is_rooted(ALL[0]), "RAM has it"
        assert not tier.is_rooted(ALL[1])
        assert (folder / EPOCH_NAME).read_text() == (tier.epoch or b"").hex()
        assert told == []
        second = DiskTier(folder, CAP, Chains(), settings=QUICK)
        second.start()
        second.set_namespace(NAMESPACE, PAYLOAD_BYTES)
        await until(lambda: "another sidecar" in second.off_reason)
        await second.close()
        await fill(tier)
        assert await fetch(tier, ALL) == [True] * 40
    async with disk_tier(tmp_path / "old") as former:
        assert await fetch(former, ALL) == [True] * 40, "what was moved away is whole"


async def test_a_folder_that_came_instead_is_somebody_elses_until_its_lock_is_had(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    async with disk_tier(folder, settings=ASLEEP) as tier:
        for seed in range(20):
            await tier.store_all(records(chain(10, seed)))
        shutil.rmtree(folder)
        folder.mkdir()
        async with disk_tier(folder) as second:
            for seed in range(20, 26):
                await second.store_all(records(chain(10, seed)))
            there = [path.name for path in segment_paths(folder)]
            # evicts among what it believes to have
            await tier.store_all(records(chain(10, 50)))
            await until(lambda: "another sidecar" in tier.off_reason)
            assert [path.name for path in segment_paths(folder)] == there
            assert await fetch(second, chain(10, 25)) == [True] * 10
        await until(tier.enabled)
        assert await fetch(tier, chain(10, 25)) == [True] * 10


def test_nothing_is_removed_from_a_folder_that_came_instead(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.mkdir()
    folder = SegmentFolder(path)
    folder.prepare()
    shutil.rmtree(path)
    path.mkdir()
    (path / segment_name(1)).write_text("of somebody else")
    folder.remove(1)
    assert (path / segment_name(1)).exists()
    with pytest.raises(GoneError, match="replaced"):
        folder.create(2, 8192)
    folder.prepare()
    folder.remove(1)
    assert not (path / segment_name(1)).exists()
    folder.release()


async def test_a_folder_that_is_missing_is_a_reason_with_its_name_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    async with disk_tier(folder, settings=ASLEEP) as tier:
        await fill(tier)
        shutil.rmtree(folder)
        assert await fetch(tier, ALL[:1]) == [False]
        await until(lambda: "No such file" in tier.off_reason)
        assert str(folder) in tier.off_reason
        assert num_known(tier) == 0
        folder.mkdir()
        await until(tier.enabled)
        await fill(tier)


def test_trouble_after_a_long_time_of_health_is_tried_again_soon() -> None:
    back_off = BackOff(0.5, 30.0)
    now, waits = 100.0, []
    for _ in range(8):
        waits.append(back_off.next_seconds(now))
        now += waits[-1] + 1.0
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert back_off.next_seconds(now + 20.0) == 30.0
    assert back_off.next_seconds(now + 20.0 + 30.0 + 31.0) == 0.5


@pytest.mark.parametrize("kind", ["folder", "link"])
async def test_what_is_no_file_is_foreign_whatever_its_name(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    target = tmp_path / "target"
    target.write_bytes(b"mine" * 4096)
    foreign = [folder / segment_name(number) for number in (1, 2, 3, 40)]
    for path in foreign:
        if kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(target)
    for _ in range(2):
        async with disk_tier(folder, settings=ASLEEP) as tier:
            told = offs(tier)
            for seed in range(20):
                assert await tier.store_all(records(chain(10, seed))) == [True] * 10
                assert folder_bytes(folder) - folder_bytes_of(foreign) <= CAP
            assert await fetch(tier, chain(10, 19)) == [True] * 10
            assert told == []
    assert all(path.is_dir() if kind == "folder" else path.is_symlink() for path in foreign)
    assert target.read_bytes() == b"mine" * 4096


def folder_bytes_of(paths: list[Path]) -> int:
    return sum(max(path.lstat().st_size, path.lstat().st_blocks * 512) for path in paths)


async def test_a_reason_names_the_file_that_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / PROBE_NAME).mkdir()
    tier = DiskTier(tmp_path, CAP, Chains(), settings=QUICK)
    tier.start()
    tier.set_namespace(NAMESPACE, PAYLOAD_BYTES)
    await until(lambda: PROBE_NAME in tier.off_reason)
    (tmp_path / PROBE_NAME).rmdir()
    await until(tier.enabled)
    await tier.close()
    assert reason_of(OSError(5, "Broken", "a-file")) == "the disk fails: Broken: a-file"


@pytest.mark.parametrize("number", [2**64 - 1, MAX_SEQUENCE + 1, MAX_SEQUENCE, MAX_SEQUENCE - 1])
async def test_a_junk_file_with_a_high_number_spoils_no_numbers(tmp_path: Path, number: int) -> None:
    junk = tmp_path / segment_name(number)
    junk.write_bytes(b"x" * 8192)
    for life in range(3):
        async with disk_tier(tmp_path) as tier:
            assert len(tier.index) > 0 or life == 0
            for seed in range(15):
                await tier.store_all(records(chain(10, 100 * life + seed)))
                assert folder_bytes(tmp_path) - (8192 if junk.exists() else 0) <= CAP
    assert junk.exists() == (number > MAX_SEQUENCE), "ours, without a record, goes; what is foreign stays"
    assert max(sequence_of(path.name) or 0 for path in segment_paths(tmp_path)) < 1000


async def test_numbers_begin_again_at_their_end(tmp_path: Path) -> None:
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(chain(4, 1)))
    segment_paths(tmp_path)[0].rename(tmp_path / segment_name(MAX_SEQUENCE))
    for life in range(3):
        async with disk_tier(tmp_path) as tier:
            if life == 0:
                assert await fetch(tier, chain(4, 1)) == [True] * 4
            else:
                assert await fetch(tier, chain(4, 10 * life + 1)) == [True] * 4
            for seed in range(2):
                assert await tier.store_all(records(chain(4, 10 * life + 10 + seed))) == [True] * 4
            assert folder_bytes(tmp_path) <= CAP
    assert following(MAX_SEQUENCE) == 1
    assert len(segment_paths(tmp_path)) == len(files.names(tmp_path)) - 1, "all but the epoch are known segments"
