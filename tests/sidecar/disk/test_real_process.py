"""A real sidecar process with a disk tier under a small RAM tier: demotion, loads, restarts, hints."""

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pagoda_sidecar.client import DigestRow, TierClient
from tests.sidecar.disk.support import folder_bytes, segment_paths
from tests.sidecar.support import (
    MEBIBYTE,
    SidecarProcess,
    chain,
    client_of,
    load,
    memcached,
    sidecar_process,
    store,
    usable,
    wait_until,
)

DISK_BYTES = 8 * MEBIBYTE
STORED = 'pagoda_tier_demotions_total{outcome="stored"}'


@pytest.fixture
def disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pagoda-disk-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def pod(disk: Path) -> Iterator[SidecarProcess]:
    """Room for about 70 blocks in RAM and 500 on disk."""
    with sidecar_process(ram_bytes=MEBIBYTE, flags={"--disk-dir": disk, "--disk-bytes": DISK_BYTES}) as process:
        yield process


def wait(condition: Callable[[], object], what: str = "") -> None:
    """Ten times what it takes on a machine with two busy cores."""
    wait_until(condition, 60.0, what)


def on(client: TierClient) -> None:
    wait(lambda: usable(client) and not client.disk_off_reason, "the disk tier")


def store_all(sidecar: SidecarProcess, client: TierClient, num_chains: int, length: int = 10) -> list[list[bytes]]:
    """Store more than RAM holds, no faster than the disk takes it."""
    chains = [chain(length, seed) for seed in range(num_chains)]
    for number, addresses in enumerate(chains, 1):
        store(client, addresses)
        due = number * length - 65  # RAM holds about 80, and the next 20 victims are written ahead
        wait(lambda due=due: sidecar.metric(STORED) >= due, "demotion")  # type: ignore[misc]
    return chains


def test_more_than_ram_holds_comes_back_from_disk_also_after_kill_9(pod: SidecarProcess, disk: Path) -> None:
    with client_of(pod) as client:
        on(client)
        chains = store_all(pod, client, 20)
        wait(lambda: pod.metric(STORED) >= 200, "all of it on disk, when nothing else is to be done")
        oldest = chains[0]
        parts = client.lookup(oldest, 1.0)
        assert [(part.tier, part.first, part.count) for part in parts] == [("disk", 0, 10)]
        assert parts[0].seconds > 0
        assert load(client, oldest).sources == ["disk"] * 10
        assert load(client, oldest).sources == ["ram"] * 10, "it came back through RAM"
        assert folder_bytes(disk) <= DISK_BYTES
        for _ in range(2):
            pod.kill_supervisor()
            pod.start()
            wait(lambda: not client.attached)
            on(client)
            for addresses in chains:
                assert load(client, addresses).reason is None
        wait(lambda: pod.metric("pagoda_leases") == 0)
        assert folder_bytes(disk) <= DISK_BYTES


def test_the_cap_holds_while_much_more_is_stored(pod: SidecarProcess, disk: Path) -> None:  # E29
    with client_of(pod) as client:
        on(client)
        seeds = itertools.count()

        def has_evicted() -> bool:
            for _ in range(10):
                store(client, chain(10, next(seeds)))
            assert folder_bytes(disk) <= DISK_BYTES
            return pod.metric('pagoda_tier_evictions_total{tier="disk"}') > 100

        wait(has_evicted, "eviction on disk")
        assert pod.metric('pagoda_tier_bytes{tier="disk"}') <= DISK_BYTES
        assert folder_bytes(disk) <= DISK_BYTES
        assert len(segment_paths(disk)) >= 4


def test_a_parked_chain_is_written_at_once_and_hinted_while_it_is_only_on_disk(pod: SidecarProcess) -> None:
    parked = chain(6, seed=500)
    with client_of(pod) as client:
        on(client)
        store(client, parked)
        row = DigestRow(b"d" * 16, 24, parked[-1])
        client.report([row], [], [], [], None, 1.0, parked=[parked[-1]])
        wait(lambda: pod.metric(STORED) >= 6, "the parked chain on disk")
        wait(lambda: pod.hint_rows() == {row.digest.hex(): (24, "ram")})
        for seed in range(40):
            store(client, chain(10, seed))
        assert len(load(client, parked).sources) == 6


def test_a_chain_that_left_ram_is_hinted_as_disk(pod: SidecarProcess) -> None:
    with client_of(pod) as client:
        on(client)
        first = chain(10, seed=0)
        client.report([DigestRow(b"d" * 16, 40, first[-1])], [], [], [], None, 1.0)
        store_all(pod, client, 20)
        wait(lambda: pod.hint_rows() == {(b"d" * 16).hex(): (40, "disk")})


def test_what_is_idle_is_written_before_anybody_needs_room(pod: SidecarProcess) -> None:
    with client_of(pod) as client:
        on(client)
        store(client, chain(10))
        wait(lambda: pod.metric(STORED) == 10, "idle blocks on disk")


def test_no_disk_is_a_reason_and_nothing_else(pod: SidecarProcess, disk: Path) -> None:
    pod.flags = {"--disk-dir": disk / "not-there", "--disk-bytes": DISK_BYTES}
    pod.stop()
    pod.start()
    with client_of(pod) as client:
        wait(lambda: "No such file" in client.disk_off_reason)
        assert store(client, chain(5)).stored == 5
        assert load(client, chain(5)).reason is None
        assert 'tier="disk"' not in "".join(line for line in pod.get("/metrics").splitlines() if "tier_bytes{" in line)
        (disk / "not-there").mkdir()
        wait(lambda: not client.disk_off_reason, "the disk tier, by itself")


def test_what_is_hot_and_on_disk_alone_is_handed_over_as_well(pod: SidecarProcess, disk: Path) -> None:
    with memcached() as port:
        nodes = [{"name": "mc-0", "address": f"127.0.0.1:{port}"}]
        with client_of(pod) as client:
            on(client)
            chains = store_all(pod, client, 20)
            wait(lambda: pod.metric(STORED) >= 200, "all of it on disk, when nothing else is to be done")
            hot = chains[0]
            assert [part.tier for part in client.lookup(hot, 1.0)] == ["disk"]
            for _ in range(5):
                client.report([], [], [], hot[-1:], None, 1.0)
            (pod.folder / "settings" / "pool-nodes.json").write_text(json.dumps({"nodes": nodes}))
            wait(lambda: not client.pool_off_reason, "the pool")
            wait(lambda: client.hand_over(64 * MEBIBYTE, 10.0) == 0, "the pool to lack nothing")
        with sidecar_process(nodes=[("mc-0", port)]) as other, client_of(other) as client:
            assert load(client, hot).sources == ["pool"] * 10
