"""The disk tier on a real file system: what comes back, what the folder takes, what a restart finds."""

from pathlib import Path

import pytest

from pagoda_sidecar.disk.layout import EPOCH_NAME
from tests.sidecar.disk.support import (
    CAP,
    chain,
    disk_tier,
    fetch,
    folder_bytes,
    record,
    records,
    segment_paths,
    until,
)


async def test_what_was_stored_comes_back_in_any_order_and_after_a_restart(tmp_path: Path) -> None:
    addresses = chain(20)
    async with disk_tier(tmp_path) as tier:
        assert await tier.store_all(records(addresses)) == [True] * 20
        assert await fetch(tier, addresses) == [True] * 20
        assert await fetch(tier, list(reversed(addresses))) == [True] * 20
        assert await fetch(tier, [addresses[3], b"?" * 32, addresses[9]]) == [True, False, True]
        epoch = tier.epoch
    async with disk_tier(tmp_path) as tier:
        assert tier.epoch == epoch
        assert len(tier.index) == 20
        assert await fetch(tier, addresses) == [True] * 20
        assert tier.is_rooted(addresses[-1])


async def test_the_cap_holds_while_ten_times_as_much_is_written(tmp_path: Path) -> None:  # E29
    async with disk_tier(tmp_path) as tier:
        for seed in range(80):
            addresses = chain(10, seed)
            await tier.store_all(records(addresses))
            assert folder_bytes(tmp_path) <= CAP
            assert tier.used_bytes <= CAP
            tier.check_integrity()
        assert await fetch(tier, addresses) == [True] * 10
        assert tier.index.num_evictions > 400
        assert folder_bytes(tmp_path) > CAP // 2
        num_records = len(tier.index)
    async with disk_tier(tmp_path) as tier:
        assert len(tier.index) == num_records
        assert folder_bytes(tmp_path) <= CAP
    async with disk_tier(tmp_path, CAP // 2) as tier:
        assert folder_bytes(tmp_path) <= CAP // 2
        assert 0 < len(tier.index) < num_records
        assert await fetch(tier, addresses) == [True] * 10


async def test_hot_chains_outlive_the_segments_they_were_written_to(tmp_path: Path) -> None:
    hot = chain(8, seed=1)
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(hot))
        for seed in range(2, 60):
            tier.touch(hot[-1])
            await tier.store_all(records(chain(10, seed)))
            assert all(tier.has(address) for address in hot)
        assert tier.num_moved >= 8
        assert await fetch(tier, hot) == [True] * 8


async def test_a_record_that_nobody_can_reach_goes_first(tmp_path: Path) -> None:
    orphans = chain(16, seed=1)
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(chain(8, seed=2)))
        await tier.store_all([record(orphans, index) for index in range(8, 16)])
        assert not tier.is_rooted(orphans[-1])
        for seed in range(3, 8):
            await tier.store_all(records(chain(8, seed)))
        await tier.store_all(records(chain(1, seed=8)))  # opens the last segment that fits: one must go
        assert all(tier.has(address) for address in chain(8, seed=2))
        assert not any(tier.has(address) for address in orphans)


async def test_records_of_another_namespace_hit_nothing_and_age_out(tmp_path: Path) -> None:  # E14
    addresses = chain(20)
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(addresses))
    other = b"o" * 16
    async with disk_tier(tmp_path, namespace=other) as tier:
        assert await fetch(tier, addresses) == [False] * 20
        assert await tier.store_all(records(addresses)) == [False] * 20, "nor are they written"
        old = {path.name for path in segment_paths(tmp_path)}
        for seed in range(8):
            await tier.store_all(records(chain(8, seed), namespace=other))
        assert not old & {path.name for path in segment_paths(tmp_path)}
        assert await fetch(tier, chain(8, 7)) == [True] * 8
        tier.set_namespace(b"n" * 16, 5000)
        await until(tier.enabled)
        assert await fetch(tier, addresses) == [False] * 20


async def test_a_damaged_record_is_a_counted_miss_and_goes(tmp_path: Path) -> None:
    addresses, damage = chain(5), list[str]()
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(addresses))
    data = bytearray(segment_paths(tmp_path)[0].read_bytes())
    data[2 * 12288 + 4096 + 77] ^= 4  # the third one's payload
    segment_paths(tmp_path)[0].write_bytes(data)
    async with disk_tier(tmp_path, damage=damage) as tier:
        assert await fetch(tier, addresses) == [True, True, False, True, True]
        assert damage == ["checksum"]
        assert not tier.has(addresses[2])
        assert not tier.is_rooted(addresses[4])
        assert await tier.store_all(records(addresses)) == [True] * 5
        assert await fetch(tier, addresses) == [True] * 5


async def test_a_valid_record_of_another_address_is_never_handed_out(tmp_path: Path) -> None:
    addresses, damage = chain(2), list[str]()
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(addresses))
    path = segment_paths(tmp_path)[0]
    data = path.read_bytes()
    async with disk_tier(tmp_path, damage=damage) as tier:
        path.write_bytes(data[12288:] + data[:12288])
        assert await fetch(tier, addresses) == [False, False]
        assert damage == ["address", "address"]


async def test_foreign_files_stay_and_ours_without_records_go(tmp_path: Path) -> None:
    foreign = tmp_path / "pagoda-notes.segment"
    foreign.write_text("mine")
    (tmp_path / "pagoda-00000000000000aa.segment").write_bytes(b"no record" * 1000)
    async with disk_tier(tmp_path) as tier:
        assert segment_paths(tmp_path) == []
        for seed in range(20):
            await tier.store_all(records(chain(8, seed)))
    assert foreign.read_text() == "mine"


async def test_two_tiers_never_share_a_folder(tmp_path: Path) -> None:
    async with disk_tier(tmp_path) as tier:
        other = type(tier)(tmp_path, CAP, type(tier.chains)(), settings=tier.settings)
        other.start()
        other.set_namespace(b"n" * 16, 5000)
        await until(lambda: "another sidecar" in other.off_reason)
        assert await tier.store_all(records(chain(3))) == [True] * 3
        await other.close()


async def test_the_epoch_is_new_when_the_content_is(tmp_path: Path) -> None:
    async with disk_tier(tmp_path) as tier:
        first = tier.epoch
        await tier.store_all(records(chain(3)))
    for path in segment_paths(tmp_path):
        path.unlink()
    async with disk_tier(tmp_path) as tier:
        second = tier.epoch
        await tier.store_all(records(chain(3)))
    assert first != second
    (tmp_path / EPOCH_NAME).write_text("damaged")
    async with disk_tier(tmp_path) as tier:
        assert tier.epoch not in (first, second)
        assert await fetch(tier, chain(3)) == [True] * 3


async def test_a_tenant_holds_no_more_than_its_share(tmp_path: Path) -> None:
    async with disk_tier(tmp_path) as tier:
        tier.set_shares({5: 0.2})
        others = chain(10, seed=1)
        await tier.store_all(records(others, tag=6))
        for seed in range(2, 12):
            addresses = chain(6, seed)
            await tier.store_all(records(addresses, tag=5))
            held = [entry for entry in tier.index if entry.tenant_tag == 5]
            assert sum(entry.num_bytes for entry in held) <= 0.2 * CAP
            assert await fetch(tier, addresses) == [True] * 6
        assert all(tier.has(address) for address in others)
        tier.set_shares({5: 0.001})
        assert not [entry for entry in tier.index if entry.tenant_tag == 5]
        assert await tier.store_all(records(addresses, tag=5)) == [False] * 6
        tier.set_shares({})
        assert await tier.store_all(records(addresses, tag=5)) == [True] * 6


@pytest.mark.parametrize("cap_bytes", [100_000, 0])
async def test_too_small_a_disk_is_a_reason_and_keeps_nothing(tmp_path: Path, cap_bytes: int) -> None:
    async with disk_tier(tmp_path) as tier:
        await tier.store_all(records(chain(20)))
    small = type(tier)(tmp_path, cap_bytes, type(tier.chains)(), settings=tier.settings)
    small.start()
    small.set_namespace(b"n" * 16, 5000)
    await until(lambda: folder_bytes(tmp_path) <= max(cap_bytes, 20_000))
    assert ("too few" if cap_bytes else "no disk") in small.off_reason
    assert await fetch(small, chain(20)) == [False] * 20
    await small.close()
