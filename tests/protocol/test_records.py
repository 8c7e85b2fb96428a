import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.records import RECORD_HEADER_BYTES, RecordError, RecordHeader, pack_header, unpack_header

HEADER = RecordHeader(
    namespace=bytes(range(16)),
    address=bytes(range(100, 132)),
    parent=bytes(range(50, 66)),
    index=3,
    tokens=16,
    payload_bytes=0x01020304,
    tenant_tag=0x1122334455667788,
    xxh3=bytes(range(200, 216)),
    codec=0,
    flags=0x0102,
)


def little(value, width):
    return bytes(value >> 8 * position & 0xFF for position in range(width))


def crc32(data):
    """The polynomial of Ethernet and zip, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0xEDB88320 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def by_hand(header):
    data = b"PGDK" + b"\x01" + little(header.codec, 1) + little(header.flags, 2)
    data += header.namespace + header.address + header.parent
    data += little(header.index, 4) + little(header.tokens, 4) + little(header.payload_bytes, 4)
    data += little(header.tenant_tag, 8) + header.xxh3 + b"\0" * 16
    return data + little(crc32(data), 4)


headers = st.builds(
    RecordHeader,
    namespace=st.binary(min_size=16, max_size=16),
    address=st.binary(min_size=32, max_size=32),
    parent=st.binary(min_size=16, max_size=16),
    index=st.integers(0, 2**32 - 1),
    tokens=st.integers(0, 2**32 - 1),
    payload_bytes=st.integers(0, 2**32 - 1),
    tenant_tag=st.integers(0, 2**64 - 1),
    xxh3=st.binary(min_size=16, max_size=16),
    codec=st.integers(0, 255),
    flags=st.integers(0, 2**16 - 1),
)


def test_a_header_equals_the_one_made_by_hand_and_its_frozen_bytes():
    assert pack_header(HEADER) == by_hand(HEADER)
    assert pack_header(HEADER).hex() == (
        "5047444b01000201000102030405060708090a0b0c0d0e0f6465666768696a6b"
        "6c6d6e6f707172737475767778797a7b7c7d7e7f808182833233343536373839"
        "3a3b3c3d3e3f40410300000010000000040302018877665544332211c8c9cacb"
        "cccdcecfd0d1d2d3d4d5d6d700000000000000000000000000000000635f1221"
    )


@given(headers)
def test_a_header_survives_packing_and_its_bytes_are_those_made_by_hand(header):
    data = pack_header(header)
    assert len(data) == RECORD_HEADER_BYTES
    assert data == by_hand(header)
    assert unpack_header(memoryview(data)) == header


def test_every_single_flipped_bit_is_refused():
    data = pack_header(HEADER)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError) as refused:
            unpack_header(flipped)
        assert refused.value.reason == ("magic" if bit < 32 else "crc")


@pytest.mark.parametrize(
    ("offset", "value", "reason"), [(4, 2, "version"), (4, 0, "version"), (108, 1, "reserved"), (123, 9, "reserved")]
)
def test_bytes_with_a_right_crc_that_we_would_not_write_are_refused_with_their_reason(offset, value, reason):
    data = bytearray(pack_header(HEADER))
    data[offset] = value
    data[124:] = little(crc32(data[:124]), 4)
    with pytest.raises(RecordError) as refused:
        unpack_header(data)
    assert refused.value.reason == reason


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_and_nothing_else_is_raised(data):
    with pytest.raises(RecordError):
        unpack_header(data)


def test_zeroed_memory_is_no_header():
    with pytest.raises(RecordError):
        unpack_header(bytes(RECORD_HEADER_BYTES))


@pytest.mark.parametrize(
    "change",
    [{"namespace": bytes(32)}, {"address": bytes(16)}, {"parent": bytes(32)}, {"xxh3": b""}, {"index": -1},
     {"tokens": 2**32}, {"payload_bytes": 2**32}, {"tenant_tag": 2**64}, {"codec": 256}, {"flags": -1}],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_refused(change):
    with pytest.raises(ValueError):
        pack_header(dataclasses.replace(HEADER, **change))
