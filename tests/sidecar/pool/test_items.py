import dataclasses
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.records import RecordError, pack_header
from pagoda_sidecar.pool import PoolSettings, items, keys
from tests.sidecar.pool.records import NAMESPACE, record

_PRINTABLE = set((string.ascii_letters + string.digits + "-_:+").encode())


def test_keys_are_safe_short_and_differ_by_kind_namespace_address_checksum_and_index() -> None:
    address, checksum = bytes(32), bytes(16)
    made = [
        keys.record_key(NAMESPACE, address),
        keys.record_key(NAMESPACE, address[:-1] + b"\1"),
        keys.record_key(NAMESPACE[:-1] + b"\1", address),
        keys.part_key(NAMESPACE, address, checksum, 0),
        keys.part_key(NAMESPACE, address, checksum, 1),
        keys.part_key(NAMESPACE, address, checksum[:-1] + b"\1", 0),
    ]
    assert len(set(made)) == len(made)
    assert all(len(key) == keys.KEY_BYTES and set(key) <= _PRINTABLE for key in made)


def test_keys_stay_as_they_are() -> None:
    assert keys.record_key(bytes(range(32)), bytes(32)) == b"p1:3QgekXXbjC7XMXcVNjpIRFWY1vZaVi9_IVgTcZFr7FE"
    assert keys.part_key(bytes(range(32)), bytes(32), bytes(16), 3) == b"p1+W4LEkz4MPG8XEOTq4k5Bzfpuf6YF-rH4jh-GjdWxVoc"


@given(st.integers(1, 10_000), st.integers(200, 3000))
def test_parts_cover_the_payload_once_and_fit_the_limit(payload_bytes: int, limit: int) -> None:
    part_bytes = items.part_size(payload_bytes, limit)
    if part_bytes is None:
        assert payload_bytes + 128 <= limit
        return
    ranges = list(items.part_ranges(payload_bytes, part_bytes))
    assert [start for start, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == payload_bytes
    assert all(0 < end - start <= limit for start, end in ranges)
    assert items.unpack_descriptor(items.pack_descriptor(payload_bytes, part_bytes), payload_bytes) == part_bytes


@pytest.mark.parametrize("data", [bytes(8), b"\5\0\0\0\2\0\0\0", b"\5\0\0\0\4\0\0\0"])
def test_a_descriptor_that_does_not_make_up_the_payload_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="parts"):
        items.unpack_descriptor(data, 11)


def test_a_header_must_be_of_our_namespace_and_of_the_block_that_was_asked_for() -> None:
    header, _ = record(1)
    assert items.check_header(pack_header(header), NAMESPACE, header.address) == header
    with pytest.raises(RecordError, match="namespace"):
        items.check_header(pack_header(header), bytes(32), header.address)
    with pytest.raises(RecordError, match="address"):
        items.check_header(pack_header(header), NAMESPACE, bytes(32))


def test_a_payload_must_have_its_length_and_its_bytes() -> None:
    header, payload = record(1, 100)
    items.check_payload(header, payload)
    with pytest.raises(RecordError, match="length"):
        items.check_payload(header, payload[:-1])
    with pytest.raises(RecordError, match="checksum"):
        items.check_payload(header, memoryview(bytes(100)))


def test_the_defaults_are_those_that_were_measured_with() -> None:
    assert dataclasses.asdict(PoolSettings()) == {
        "connect_seconds": 0.5,
        "operation_seconds": 0.5,
        "min_bytes_per_second": 2e6,
        "connections_per_operation": 2,
        "window_bytes": 16 << 20,
        "retry_seconds": 1.0,
        "max_retry_seconds": 30.0,
        "absent_seconds": 1.0,
        "max_absent": 65_536,
    }
