"""Records that are not what they say, put into a real node behind the pool's back: misses, counted, dropped."""

import dataclasses
import struct
from collections.abc import Iterator

import pytest

from pagoda_protocol.records import pack_header
from pagoda_sidecar.pool import keys
from tests.sidecar.pool.records import (
    NAMESPACE,
    counts,
    fetch_all,
    operations,
    pool_over,
    put_raw,
    raw_value,
    record,
    store_all,
)
from tests.support.memcached import Memcached, needs_memcached, running_memcached

pytestmark = needs_memcached

_VICTIM = record(1)
_OTHER = record(2)
_HEAD = pack_header(_VICTIM[0])
_VALUE = raw_value(_VICTIM)


def _flipped(value: bytes, position: int) -> bytes:
    return value[:position] + bytes([value[position] ^ 0x10]) + value[position + 1 :]


def _headed(**changes: object) -> bytes:
    return pack_header(dataclasses.replace(_VICTIM[0], **changes)) + bytes(_VICTIM[1])  # type: ignore[arg-type]


_CASES = {
    "empty": (b"", 0, "length"),
    "shorter than a header": (_VALUE[:127], 0, "length"),
    "header alone": (_VALUE[:128], 0, "length"),
    "truncated": (_VALUE[:-1], 0, "length"),
    "one byte too long": (_VALUE + b"x", 0, "length"),
    "longer than any slot": (_VALUE + bytes(700_000), 0, "length"),
    "garbage": (bytes(range(256)) * 100, 0, "magic"),
    "magic": (b"PGDX" + _VALUE[4:], 0, "magic"),
    "flipped bit in the header": (_flipped(_VALUE, 77), 0, "crc"),
    "flipped bit in the payload": (_flipped(_VALUE, len(_VALUE) - 5), 0, "checksum"),
    "another block's record": (raw_value(_OTHER), 0, "address"),
    "another namespace's record": (_headed(namespace=bytes(16)), 0, "namespace"),
    "length in the header too small": (_headed(payload_bytes=100), 0, "length"),
    "length in the header too large": (_headed(payload_bytes=1 << 31), 0, "length"),
    "split head of no parts": (_HEAD + bytes(8), 1, "parts"),
    "split head of too many parts": (_HEAD + struct.pack("<II", 1000, 41), 1, "parts"),
    "split head that is too long": (_HEAD + bytes(9), 1, "length"),
    "whole record called split": (_VALUE, 1, "length"),
}


@pytest.fixture(scope="module")
def node() -> Iterator[Memcached]:
    with running_memcached() as node:
        yield node


@pytest.mark.parametrize("case", _CASES)
async def test_a_bad_record_is_a_counted_miss_and_is_dropped(node: Memcached, case: str) -> None:
    node.restart()
    value, flag, reason = _CASES[case]
    async with pool_over([node]) as (pool, metrics):
        assert all(await store_all(pool, [_OTHER, record(3)]))
        put_raw(node, _VICTIM[0], value, flag)
        assert await fetch_all(pool, [_OTHER, _VICTIM, record(3)]) == [0, 2]
        assert counts(metrics, "pagoda_integrity_failures", tier="pool") == {reason: 1}
        assert operations(metrics, "fetch") == {"hit": 2, "corrupt": 1}
        assert await pool.probe([_VICTIM[0].address, _OTHER[0].address]) == [False, True]
        assert await pool.store(*_VICTIM)
        assert await fetch_all(pool, [_VICTIM]) == [0]


async def test_a_truncated_record_is_not_completed_by_what_lay_in_the_slot_before(node: Memcached) -> None:
    put_raw(node, _VICTIM[0], _VALUE[:-100])
    ready: list[int] = []
    async with pool_over([node]) as (pool, _):
        slot = memoryview(bytearray(_VICTIM[1]))
        await pool.fetch([_VICTIM[0].address], [slot], lambda index, _: ready.append(index))
    assert ready == []


@pytest.mark.parametrize("damage", ["flipped", "shorter", "longer"])
async def test_a_bad_part_spoils_its_record_alone(damage: str) -> None:
    with running_memcached(item_limit="1m") as node:
        large, small = record(4, 3_000_000), record(5)
        async with pool_over([node]) as (pool, metrics):
            assert all(await store_all(pool, [large, small]))
            key = keys.part_key(NAMESPACE, large[0].address, large[0].xxh3, 2)
            part = bytes(large[1][2_000_000:])  # of three of a million each
            bad = {"flipped": _flipped(part, 9), "shorter": part[:-1], "longer": part + b"x"}[damage]
            assert node.command(b"ms %b %d\r\n%b\r\n" % (key, len(bad), bad)) == b"HD\r\n"
            assert await fetch_all(pool, [large, small]) == [1]
            reason = "checksum" if damage == "flipped" else "length"
            assert counts(metrics, "pagoda_integrity_failures", tier="pool") == {reason: 1}
            assert await pool.store(*large)
            assert operations(metrics, "store") == {"stored": 3}
            assert await fetch_all(pool, [large, small]) == [0, 1]
