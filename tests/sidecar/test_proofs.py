"""A block of an engine's proof: in one tier at a time, and gone afterwards."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pymemcache
import pytest

from pagoda_sidecar.client import TierClient, TierUnavailable
from tests.sidecar.support import (
    MEBIBYTE,
    ROOT,
    SidecarProcess,
    chain,
    client_of,
    memcached,
    payload,
    sidecar_process,
    store,
    wait_until,
)
from tests.support.faults.proxy import Proxy, running_proxy

TIERS = ("ram", "disk", "pool")


class Pod:
    """A sidecar with every tier, and an engine's client of it."""

    def __init__(self, sidecar: SidecarProcess, client: TierClient, memcached_port: int, node: Proxy) -> None:
        self.sidecar = sidecar
        self.client = client
        self.memcached_port = memcached_port
        self.node = node

    def put(self, seed: int) -> bytes:
        """Store a block as an engine does and return its address."""
        (address,) = chain(1, seed)
        assert store(self.client, [address]).stored == 1
        return address

    def where(self, address: bytes) -> list[str]:
        return [part.tier for part in self.client.lookup([address], 2.0, is_proof=True)]

    def load(self, address: bytes) -> list[str]:
        got: list[bytes] = []
        result = self.client.load(
            ROOT, [address], 0, 1, lambda _, view: got.append(bytes(view)), 2.0, lambda: False, is_proof=True
        )
        assert got == [payload(address)] * len(result.sources)
        return result.sources


@pytest.fixture
def pod() -> Iterator[Pod]:
    disk = Path(tempfile.mkdtemp(prefix="pagoda-test-"))
    flags = {"--disk-dir": disk, "--disk-bytes": 8 * MEBIBYTE}
    with (
        memcached() as port,
        running_proxy("127.0.0.1", port) as node,
        sidecar_process(nodes=[("mc-0", node.port)], flags=flags) as sidecar,
        client_of(sidecar) as client,
    ):
        wait_until(lambda: not client.disk_off_reason and not client.pool_off_reason, what="all tiers")
        yield Pod(sidecar, client, port, node)
    shutil.rmtree(disk)


def test_a_block_is_placed_in_one_tier_alone_and_comes_back_from_there(pod: Pod) -> None:
    assert pod.client.tiers == TIERS
    address = pod.put(1)
    assert (pod.where(address), pod.load(address)) == (["ram"], ["ram"])
    assert pod.client.place(address, "disk", 2.0) == ""
    assert (pod.where(address), pod.load(address)) == (["disk"], ["disk"])
    assert pod.client.place(address, "pool", 2.0) == ""
    assert (pod.where(address), pod.load(address)) == (["pool"], ["pool"])
    assert pod.load(address) == ["ram"], "what was loaded lies there again"


def test_a_block_placed_nowhere_is_in_no_tier_after_a_restart_either(pod: Pod) -> None:
    address = pod.put(1)
    assert pod.client.place(address, "disk", 2.0) == ""
    assert pod.client.place(address, None, 2.0) == "", "from disk, without a copy in RAM"
    assert pod.where(address) == []
    other = pod.put(2)
    assert pod.client.place(other, "disk", 2.0) == ""
    assert pod.where(other) == ["disk"]
    pod.sidecar.kill_worker()
    wait_until(lambda: not pod.client.attached, what="the end of the worker")
    wait_until(lambda: pod.client.attached and not pod.client.disk_off_reason, what="the next worker")
    assert (pod.where(address), pod.where(other)) == ([], []), "a proof is nobody's cache"


def test_memcached_forgets_a_proof_by_itself(pod: Pod) -> None:
    assert pod.client.place(pod.put(1), "pool", 2.0) == ""
    client = pymemcache.Client(("127.0.0.1", pod.memcached_port), timeout=5)
    dumped = client.raw_command(b"lru_crawler metadump all", b"END\r\n").decode()
    client.close()
    (line,) = [line for line in dumped.splitlines() if line.startswith("key=")]
    expires_at = int(dict(field.split("=", 1) for field in line.split())["exp"])
    assert 0 < expires_at - time.time() <= 61


def test_a_proof_is_no_use_of_anything_and_counted_as_no_lookup(pod: Pod) -> None:
    address = pod.put(1)
    assert (pod.where(address), pod.load(address), pod.load(address)) == (["ram"], ["ram"], ["ram"])
    assert pod.sidecar.metric('pagoda_tier_lookups_total{result="hit",tier="ram"}') == 0
    time.sleep(0.5)
    assert pod.sidecar.metric('pagoda_pool_operations_total{node="mc-0",operation="store",outcome="stored"}') == 0
    assert pod.client.lookup([address], 2.0), "an ordinary lookup counts"
    assert pod.sidecar.metric('pagoda_tier_lookups_total{result="hit",tier="ram"}') == 1


def test_a_tier_that_takes_nothing_says_why_in_time_and_the_sidecar_is_not_in_doubt(pod: Pod) -> None:
    assert pod.client.place(pod.put(1), "pool", 2.0) == ""
    pod.node.black_hole(True)
    address = pod.put(2)
    assert pod.client.place(address, "pool", 1.2) == "not stored: timeout", "the sidecar says so, in time"
    assert pod.client.attached


def test_what_is_not_in_ram_cannot_be_placed_and_a_tier_that_is_none_is_refused(pod: Pod) -> None:
    (address,) = chain(1, 9)
    assert pod.client.place(address, "disk", 2.0) == "the block is not in RAM"
    with pytest.raises(TierUnavailable, match="tier: expected"):
        pod.client.place(address, "ram", 2.0)
