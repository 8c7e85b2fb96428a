"""What leaves RAM, and what of it is a loss."""

import asyncio
from pathlib import Path

import pytest

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.policy import FadingFrequency
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.disk.chains import Chains
from pagoda_sidecar.disk.tier import DiskTier
from pagoda_sidecar.residency import Residency
from pagoda_sidecar.sidecar import Sidecar
from tests.sidecar.disk.support import STRIDE, record
from tests.sidecar.disk.support import chain as disk_chain
from tests.sidecar.support import MEBIBYTE, ROOT, FakePool, chain


def put(index: RamIndex, seed: int) -> Block:
    """Seal one block, a chain of its own."""
    block = index.take(chain(1, seed)[0], ROOT, 0, 4)
    assert block is not None
    index.seal(block)
    index.unreference(block)
    return block


async def test_only_what_had_to_make_room_before_it_was_on_disk_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, counters = DiskTier(None, 0, Chains()), Counters(Metrics())
    index, residency = RamIndex(2, FadingFrequency(2)), Residency(disk, counters)
    residency.follow(index)
    put(index, 0)
    put(index, 1)
    put(index, 2)
    assert counters.demotions.value(outcome="lost") == 0, "without a disk nothing is"
    monkeypatch.setattr(disk, "enabled", lambda: True)
    index.drop(put(index, 3))  # damaged
    assert counters.demotions.value(outcome="lost") == 1
    put(index, 4).is_on_disk = True
    put(index, 5)
    put(index, 6)
    assert counters.demotions.value(outcome="lost") == 2, "of the last two victims one was on disk"


async def test_what_a_tenant_gives_of_the_disk_for_its_own_is_counted(tmp_path: Path) -> None:
    sidecar = Sidecar(tmp_path, MEBIBYTE, FakePool(), Counters(Metrics()))
    index = sidecar.disk.index
    index.begin(50.0)
    segment = index.open_segment(1, 20 * STRIDE)
    for position in range(6):
        index.add(record(disk_chain(6, 1), position, 5).header, segment, position * STRIDE)
    index.set_limits({5: 4 * STRIDE})
    for _ in range(2):
        sidecar.update_gauges()
        assert sidecar.counters.share_evictions.value(tier="disk") == 2
        assert sidecar.counters.evictions.value(tier="disk") == 2
    index.remove_segment(segment)
    sidecar.update_gauges()
    assert sidecar.counters.share_evictions.value(tier="disk") == 2
    assert sidecar.counters.evictions.value(tier="disk") == 6
    await asyncio.sleep(0)
