"""A real sidecar process over its real socket, with a real client: what comes back, and what is never handed out."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagoda_protocol.tenants import digest_secret
from pagoda_sidecar.arena.layout import SUPERBLOCK_BYTES, unpack_superblock
from pagoda_sidecar.client import DigestRow, TierClient, TierUnavailable
from tests.sidecar.support import (
    MEBIBYTE,
    ROOT,
    SidecarProcess,
    chain,
    client_of,
    identity,
    load,
    memcached,
    payload,
    records,
    sidecar_process,
    store,
    usable,
    wait_until,
)


def test_what_was_stored_comes_back_and_leases_are_zero_at_idle(sidecar: SidecarProcess) -> None:
    addresses = chain(20)
    with client_of(sidecar) as client:
        assert store(client, addresses).stored == 20
        assert [(p.tier, p.first, p.count) for p in client.lookup(addresses, 1.0)] == [("ram", 0, 20)]
        assert load(client, addresses).sources == ["ram"] * 20
        assert load(client, addresses, 5, 9).sources == ["ram"] * 4
        assert store(client, addresses).present == 20
        again = load(client, [*addresses, b"x" * 32])
        assert (len(again.sources), again.reason) == (20, "no_slots")  # nobody could fetch the last one
        wait_until(lambda: sidecar.metric('pagoda_tier_blocks{state="sealed",tier="ram"}') == 20)
        assert sidecar.metric("pagoda_leases") == 0
        assert sidecar.metric("pagoda_quarantined_slots") == 0


def test_e3_a_store_that_fails_is_never_visible(sidecar: SidecarProcess) -> None:
    addresses = chain(4)

    def source(index: int, view: memoryview) -> None:
        view[:] = payload(addresses[index])
        if index == 2:
            raise RuntimeError("the device copy failed")

    with client_of(sidecar) as client:
        with pytest.raises(RuntimeError, match="device copy"):
            client.store(records(addresses), source, 1.0)
        assert client.lookup(addresses, 1.0) == []
        assert store(client, addresses).stored == 4, "the slots of the failed store are free again"
        assert len(load(client, addresses).sources) == 4


def test_a_sink_that_fails_leaves_no_lease_behind(sidecar: SidecarProcess) -> None:  # E22
    addresses = chain(4)

    def sink(position: int, view: memoryview) -> None:
        raise RuntimeError("no page")

    with client_of(sidecar) as client:
        store(client, addresses)
        with pytest.raises(RuntimeError, match="no page"):
            client.load(ROOT, addresses, 0, 4, sink, 1.0, lambda: False)
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0)
        assert load(client, addresses).reason is None


def test_a_cancelled_load_ends_at_once_and_keeps_what_came(sidecar: SidecarProcess) -> None:
    addresses = chain(8)
    seen: list[int] = []
    with client_of(sidecar) as client:
        store(client, addresses)
        result = client.load(
            ROOT, addresses, 0, 8, lambda position, view: seen.append(position), 5.0, lambda: bool(seen)
        )
        assert result.reason in ("cancelled", None)
        assert len(result.sources) == len(seen)


def test_many_threads_at_once_get_their_own_bytes_and_leave_nothing_held(sidecar: SidecarProcess) -> None:  # E22
    with client_of(sidecar) as client:

        def work(thread: int) -> int:
            num_loaded = 0
            for turn in range(12):
                addresses = chain(8, seed=thread * 5 + turn % 5)
                store(client, addresses)
                num_loaded += len(load(client, addresses).sources)
                client.lookup(addresses, 5.0)
                client.report([DigestRow(addresses[0][:16], 4, addresses[0])], [], [], addresses[-1:], None, 5.0)
            return num_loaded

        with ThreadPoolExecutor(6) as threads:
            assert sum(threads.map(work, range(6))) > 6 * 12 * 4  # 240 blocks want 160 slots
        wait_until(lambda: sidecar.metric('pagoda_tier_evictions_total{tier="ram"}') > 0)
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0)
        assert sidecar.metric("pagoda_quarantined_slots") == 0
        sealed = sidecar.metric('pagoda_tier_blocks{state="sealed",tier="ram"}')
        free = sidecar.metric('pagoda_tier_blocks{state="free",tier="ram"}')
        assert (
            sealed + free == unpack_superblock((sidecar.volume / "arena").read_bytes()[:SUPERBLOCK_BYTES])[1].num_slots
        )


def test_a_mistake_of_the_caller_is_not_taken_for_a_dead_sidecar(sidecar: SidecarProcess) -> None:
    def source(index: int, view: memoryview) -> None:
        view[:] = b"too short"

    with client_of(sidecar) as client:
        with pytest.raises(ValueError, match="different structures"):
            client.store(records(chain(1)), source, 1.0)
        assert client.attached


@pytest.mark.parametrize(("part", "is_restarted"), [("payload", False), ("header", False), ("payload", True)])
def test_a_flipped_bit_is_a_counted_miss_and_the_record_goes(
    sidecar: SidecarProcess, part: str, is_restarted: bool
) -> None:
    addresses = chain(6)
    with client_of(sidecar) as client:
        store(client, addresses)
        failures_before = 0.0 if is_restarted else num_failures(sidecar)
        if is_restarted:
            sidecar.kill_supervisor()
        flip_bit(sidecar.volume / "arena", addresses[3], part)
        if is_restarted:
            sidecar.start()
            wait_until(lambda: not client.attached)
            wait_until(lambda: usable(client))
        result = load(client, addresses)
        assert result.sources == ["ram"] * 3
        assert result.reason is not None
        wait_until(lambda: num_failures(sidecar) == failures_before + 1)
        assert client.num_integrity_failures == (0 if is_restarted else 1)
        wait_until(lambda: [p.count for p in client.lookup(addresses, 1.0)] == [3], what="the record to go")
        assert store(client, addresses).stored == 1
        assert load(client, addresses).reason is None


def test_e16_two_pods_hit_each_others_blocks_through_the_pool() -> None:
    addresses = chain(10)
    with (
        memcached() as port,
        sidecar_process(nodes=[("mc-0", port)]) as one,
        sidecar_process(nodes=[("mc-0", port)]) as other,
    ):
        with client_of(one) as client:
            store(client, addresses)
            assert client.hand_over(10 * MEBIBYTE, 5.0) == 10
            assert client.hand_over(10 * MEBIBYTE, 5.0) == 0, "the pool lacks nothing any more"
        with client_of(other) as client:
            store(client, addresses[:2])
            parts = [(part.tier, part.first, part.count) for part in client.lookup([*addresses, b"?" * 32], 1.0)]
            assert parts == [("ram", 0, 2), ("pool", 2, 8)]
            result = load(client, [*addresses, b"?" * 32])
            assert (result.sources, result.reason) == (["ram"] * 2 + ["pool"] * 8, "miss")
            assert load(client, addresses).sources == ["ram"] * 10


def test_another_block_size_makes_the_arena_anew(sidecar: SidecarProcess) -> None:
    path = sidecar.volume / "arena"
    with client_of(sidecar) as client:
        store(client, chain(3))
    before = path.stat().st_ino, unpack_superblock(path.read_bytes()[:SUPERBLOCK_BYTES])[0]
    with client_of(sidecar, identity(sidecar.namespace, payload_bytes=5000)) as client:
        assert client.lookup(chain(3), 1.0) == []
        after = path.stat().st_ino, unpack_superblock(path.read_bytes()[:SUPERBLOCK_BYTES])[0]
        assert after[0] != before[0]
        assert after[1] != before[1]
        assert path.stat().st_size == sidecar.ram_bytes
        store(client, chain(3))
        assert load(client, chain(3)).reason is None


def test_records_of_another_namespace_are_never_handed_out(sidecar: SidecarProcess) -> None:
    addresses = chain(5)
    with client_of(sidecar) as client:
        store(client, addresses)
    with client_of(sidecar, identity(namespace=b"o" * 32)) as client:
        assert client.lookup(addresses, 1.0) == []
        assert store(client, addresses).stored == 5
        assert load(client, addresses).reason is None


def test_bad_settings_keep_the_tiers_off_with_a_reason_until_they_are_mended(sidecar: SidecarProcess) -> None:
    secret = (sidecar.folder / "secret" / "pool").read_bytes()
    (sidecar.folder / "secret" / "digest").write_bytes(b"x" * 32)
    sidecar.kill_worker()
    client = TierClient(sidecar.volume, identity(sidecar.namespace))
    try:
        wait_until(lambda: "pool secret" in client.off_reason)
        assert client.lookup(chain(1), 1.0) == []
        with pytest.raises(TierUnavailable) as off:
            store(client, chain(1))
        assert off.value.reason == "ram_off"
        (sidecar.folder / "secret" / "digest").write_bytes(digest_secret(secret))
        wait_until(lambda: usable(client))
        assert store(client, chain(1)).stored == 1
    finally:
        (sidecar.folder / "secret" / "digest").write_bytes(digest_secret(secret))
        client.close()


def test_an_arena_too_large_for_its_volume_is_a_reason_and_the_process_lives() -> None:
    with sidecar_process(ram_bytes=2**50) as sidecar:
        client = TierClient(sidecar.volume, identity())
        try:
            wait_until(lambda: "no room" in client.off_reason)
            assert "ok" in sidecar.get("/health")
            assert not (sidecar.volume / "arena").exists()
            client.report([DigestRow(b"d" * 16, 4, chain(1)[0])], chain(1), [], [], None, 1.0)
            wait_until(lambda: sidecar.hint_rows() == {(b"d" * 16).hex(): (4, "device")})
        finally:
            client.close()


def num_failures(sidecar: SidecarProcess) -> float:
    lines = sidecar.get("/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("pagoda_integrity_failures_total{"))


def test_a_slot_that_is_reused_during_the_copy_is_a_miss_even_if_its_bytes_are_whole(sidecar: SidecarProcess) -> None:
    """The seqlock's second look: what was copied belongs to the address only if the generation stood all the time."""
    addresses = chain(3)
    seen: list[int] = []

    def sink(position: int, view: memoryview) -> None:
        seen.append(position)
        if position == 1:
            change_generation(sidecar.volume / "arena", addresses[1], +1)

    with client_of(sidecar) as client:
        store(client, addresses)
        result = client.load(ROOT, addresses, 0, 3, sink, 5.0, lambda: False)
        change_generation(sidecar.volume / "arena", addresses[1], -1)
        assert seen == [0, 1]
        assert (result.sources, result.reason) == (["ram"], "generation")
        assert client.num_integrity_failures == 0, "nothing was damaged"
        assert load(client, addresses).sources == ["ram"] * 3


def change_generation(path: Path, address: bytes, step: int) -> None:
    """Add `step` to the generation in the header table's entry of `address`."""
    with path.open("r+b") as file:
        _, geometry = unpack_superblock(file.read(SUPERBLOCK_BYTES))
        for slot in range(geometry.num_slots):
            file.seek(geometry.entry_offset(slot))
            entry = file.read(160)
            if address in entry:
                file.seek(geometry.entry_offset(slot) + 8)
                file.write((int.from_bytes(entry[8:16], "little") + step).to_bytes(8, "little"))
                return
    raise AssertionError("no slot holds the address")


def flip_bit(path: Path, address: bytes, part: str) -> None:
    """Flip one bit of the record of `address` in the arena, through a file descriptor as a stray write would."""
    with path.open("r+b") as file:
        _, geometry = unpack_superblock(file.read(SUPERBLOCK_BYTES))
        for slot in range(geometry.num_slots):
            file.seek(geometry.entry_offset(slot))
            if address in file.read(160):
                offset = geometry.slot_offset(slot) + 1234 if part == "payload" else geometry.entry_offset(slot) + 92
                file.seek(offset)
                byte = file.read(1)[0] ^ 0x10
                file.seek(offset)
                file.write(bytes([byte]))
                return
    raise AssertionError("no such record")
