"""The arena's bytes against a second, hand-written implementation (struct offsets by number, crc by the polynomial)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_sidecar.arena.headers import HeaderTable, read_boot_count, write_boot_count
from pagoda_sidecar.arena.layout import (
    LayoutError,
    StoredDigest,
    fixed_geometry,
    lease_key,
    pack_digest_row,
    pack_superblock,
    unfixed_geometry,
    unpack_digest_row,
    unpack_superblock,
)


def crc32_by_hand(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


EPOCH = bytes(range(16))


def test_superblock_lies_byte_by_byte_as_drawn() -> None:
    geometry = fixed_geometry(2**20, 10_000)
    by_hand = bytearray(84)
    by_hand[0:4] = b"PGDA"
    by_hand[4] = 1
    by_hand[8:24] = EPOCH
    # 256 digest rows of 64 bytes after the first page end at 20480; slots are three pages; (2**20 - 20480) / 12448 = 82
    for offset, value in ((24, 10_000), (32, 12_288), (40, 82), (48, 20_480), (56, 256), (64, 36_864), (72, 2**20)):
        by_hand[offset : offset + 8] = value.to_bytes(8, "little")
    by_hand[80:84] = crc32_by_hand(bytes(by_hand[:80])).to_bytes(4, "little")
    assert pack_superblock(EPOCH, geometry) == bytes(by_hand)
    assert unpack_superblock(bytes(by_hand)) == (EPOCH, geometry)


def test_digest_row_lies_byte_by_byte_as_drawn() -> None:
    row = StoredDigest(b"d" * 16, b"a" * 32, 48, 2.5, 1_700_000_000)
    by_hand = b"d" * 16 + b"a" * 32 + b"\x30\x00\x00\x00" + b"\x00\x00\x20\x40" + b"\x00\xf1\x53\x65"
    by_hand += crc32_by_hand(by_hand).to_bytes(4, "little")
    assert len(by_hand) == 64
    assert pack_digest_row(row) == by_hand
    assert unpack_digest_row(by_hand) == row


def test_header_entry_lies_byte_by_byte_as_drawn() -> None:
    geometry = fixed_geometry(2**20, 10_000)
    file = bytearray(2**20)
    table = HeaderTable(memoryview(file), geometry)
    table.invalidate(1, 0x0000000500000007, 0x1122334455667788)
    entry = file[20_480 + 160 : 20_480 + 320]
    assert entry == bytes.fromhex("01000000000000000700000005000000") + bytes(128) + bytes.fromhex(
        "88776655443322110000000000000000"
    )
    table.seal(1, bytes(range(128)))
    entry = file[20_480 + 160 : 20_480 + 320]
    assert entry[0:8] == bytes([2, 0, 0, 0, 0, 0, 0, 0])
    assert entry[16:144] == bytes(range(128))
    assert table.is_sealed(1, 0x0000000500000007)
    assert not table.is_sealed(1, 0x0000000500000008)
    table.free(1)
    assert not table.is_sealed(1, 0x0000000500000007)
    assert table.generation(1) == 0x0000000500000007
    table.release()


def test_the_boot_count_lies_as_drawn() -> None:
    page = bytearray(4096)
    write_boot_count(memoryview(page), 3)
    assert page[256:272] == bytes.fromhex("0300000000000000fcffffffffffffff")


def test_a_boot_killed_between_its_two_words_still_counts_on() -> None:
    page = bytearray(4096)
    write_boot_count(memoryview(page), 7)
    struct.pack_into("<Q", page, 256, 8)
    assert read_boot_count(memoryview(page)) == 8
    struct.pack_into("<Q", page, 256, 12)
    assert read_boot_count(memoryview(page)) is None


@given(st.integers(2**15, 2**27), st.integers(1, 2**20))
def test_nothing_overlaps_and_nothing_sticks_out(file_bytes: int, payload_bytes: int) -> None:
    try:
        geometry = fixed_geometry(file_bytes, payload_bytes)
    except LayoutError:
        return
    assert geometry.header_offset >= 4096 + geometry.num_digest_rows * 64
    assert geometry.payload_offset >= geometry.header_offset + geometry.num_slots * 160
    assert geometry.payload_offset % 4096 == geometry.slot_bytes % 4096 == 0
    assert geometry.slot_bytes >= payload_bytes
    assert geometry.payload_offset + geometry.num_slots * geometry.slot_bytes <= file_bytes
    more = geometry.num_slots + 1
    assert geometry.header_offset + more * 160 + more * geometry.slot_bytes > file_bytes - 4096, "room is wasted"


@given(st.integers(0, 83), st.integers(0, 7))
def test_any_flipped_bit_of_a_superblock_is_noticed(offset: int, bit: int) -> None:
    page = bytearray(pack_superblock(EPOCH, fixed_geometry(2**20, 5000)))
    page[offset] ^= 1 << bit
    with pytest.raises(LayoutError):
        unpack_superblock(bytes(page))


def test_an_arena_without_geometry_yet_is_a_good_one() -> None:
    assert unpack_superblock(pack_superblock(EPOCH, unfixed_geometry(2**20))) == (EPOCH, unfixed_geometry(2**20))


def test_lease_keys_are_the_same_in_every_process() -> None:
    assert lease_key("a1") == 0x1BED30039166659F
    assert lease_key("a1") != lease_key("a2")
