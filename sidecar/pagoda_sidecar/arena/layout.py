"""The bytes of the arena file, little-endian.

    0                     superblock, one page
    4096                  digest table: 64-byte rows, padded to a page
    header_offset         header table: 160-byte entries, padded to a page
    payload_offset        slots of `slot_bytes` each, a multiple of 4096
    …                     unused up to file_bytes, which is exactly the tier's size

Superblock                                   Header table entry
    0    4   magic "PGDA"                        0    8   state: 0 free, 1 writing, 2 sealed
    4    4   version                             8    8   generation, high half the boot count
    8    16  arena epoch                         16   128 record header
    24   8   payload bytes of a block            144  8   key of the write lease
    32   8   slot bytes                          152  8   reserved, zero
    40   8   number of slots
    48   8   header offset                    Digest row
    56   8   digest rows                         0    16  digest
    64   8   payload offset                      16   32  address
    72   8   file bytes                          48   4   tokens
    80   4   crc32 of the 80 bytes before        52   4   heat, float32
    256  8   boot count                          56   4   last use, Unix seconds
    264  8   its complement                      60   4   crc32 of the 60 bytes before

What is inside the first crc is written once, when the geometry is fixed (before that `slot bytes` is zero). What
changes afterwards stands outside of it, so that no kill in the middle of a write can cost the arena.

Rules: pure; both sides of the contract read this file, so a change raises VERSION.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass

MAGIC = b"PGDA"
VERSION = 1
PAGE_BYTES = 4096
SUPERBLOCK_BYTES = PAGE_BYTES
ENTRY_BYTES = 160
ENTRY_WORDS = ENTRY_BYTES // 8
RECORD_OFFSET = 16  # in an entry
LEASE_WORD = 18  # in an entry
DIGEST_ROW_BYTES = 64
BOOT_OFFSET = 256
EPOCH_BYTES = 16

FREE, WRITING, SEALED = 0, 1, 2

MIN_DIGEST_ROWS = 256
MAX_DIGEST_ROWS = 65536
ARENA_BYTES_PER_DIGEST_ROW = 32768
MIN_SLOTS = 2

_SUPERBLOCK = struct.Struct("<4sI16sQQQQQQQ")
_CRC = struct.Struct("<I")
_DIGEST_ROW = struct.Struct("<16s32sIfI")


class LayoutError(ValueError):
    """Bytes that are no arena of ours, or a size in which no arena fits; the message says which."""


@dataclass(frozen=True)
class Geometry:
    """Where everything lies, in bytes; until it is fixed only `file_bytes` and `num_digest_rows` are not zero."""

    file_bytes: int
    num_digest_rows: int
    payload_bytes: int = 0
    slot_bytes: int = 0
    num_slots: int = 0
    header_offset: int = 0
    payload_offset: int = 0

    @property
    def is_fixed(self) -> bool:
        """Whether an engine has said how large its blocks are."""
        return self.slot_bytes > 0

    def slot_offset(self, slot: int) -> int:
        """Return where slot `slot` begins in the file."""
        return self.payload_offset + slot * self.slot_bytes

    def entry_offset(self, slot: int) -> int:
        """Return where the header table entry of `slot` begins in the file."""
        return self.header_offset + slot * ENTRY_BYTES


def unfixed_geometry(file_bytes: int) -> Geometry:
    """Return the geometry of an arena whose block size is not known yet."""
    rows = max(MIN_DIGEST_ROWS, min(MAX_DIGEST_ROWS, file_bytes // ARENA_BYTES_PER_DIGEST_ROW))
    return Geometry(file_bytes, rows)


def fixed_geometry(file_bytes: int, payload_bytes: int) -> Geometry:
    """Return the geometry of an arena of exactly `file_bytes` for blocks of `payload_bytes`.

    Raises:
        LayoutError: fewer than MIN_SLOTS blocks fit.
    """
    if payload_bytes <= 0:
        raise LayoutError(f"payload of {payload_bytes} bytes: expected at least 1")
    rows = unfixed_geometry(file_bytes).num_digest_rows
    slot_bytes = _pages(payload_bytes)
    header_offset = SUPERBLOCK_BYTES + _pages(rows * DIGEST_ROW_BYTES)
    num_slots = max(0, (file_bytes - header_offset) // (slot_bytes + ENTRY_BYTES))
    while num_slots and header_offset + _pages(num_slots * ENTRY_BYTES) + num_slots * slot_bytes > file_bytes:
        num_slots -= 1
    if num_slots < MIN_SLOTS:
        raise LayoutError(f"{file_bytes} bytes hold {num_slots} blocks of {payload_bytes} bytes, at least {MIN_SLOTS}")
    payload_offset = header_offset + _pages(num_slots * ENTRY_BYTES)
    return Geometry(file_bytes, rows, payload_bytes, slot_bytes, num_slots, header_offset, payload_offset)


def pack_superblock(epoch: bytes, geometry: Geometry) -> bytes:
    """Return the part of the superblock that its crc covers, crc included."""
    if len(epoch) != EPOCH_BYTES:
        raise LayoutError(f"epoch: expected {EPOCH_BYTES} bytes, got {len(epoch)}")
    body = _SUPERBLOCK.pack(
        MAGIC, VERSION, epoch, geometry.payload_bytes, geometry.slot_bytes, geometry.num_slots,
        geometry.header_offset, geometry.num_digest_rows, geometry.payload_offset, geometry.file_bytes,
    )  # fmt: skip
    return body + _CRC.pack(zlib.crc32(body))


def unpack_superblock(page: bytes | memoryview) -> tuple[bytes, Geometry]:
    """Return `(arena epoch, geometry)`.

    Raises:
        LayoutError: not written by this version for a file that this version would lay out in the same way.
    """
    body = bytes(page[: _SUPERBLOCK.size])
    if len(body) < _SUPERBLOCK.size or body[:4] != MAGIC:
        raise LayoutError("magic")
    if bytes(page[_SUPERBLOCK.size : _SUPERBLOCK.size + 4]) != _CRC.pack(zlib.crc32(body)):
        raise LayoutError("crc")
    _, version, epoch, payload, slot, num_slots, header_offset, rows, payload_offset, size = _SUPERBLOCK.unpack(body)
    if version != VERSION:
        raise LayoutError(f"version {version}")
    found = Geometry(size, rows, payload, slot, num_slots, header_offset, payload_offset)
    if found != (fixed_geometry(size, payload) if found.is_fixed else unfixed_geometry(size)):
        raise LayoutError("geometry")
    return epoch, found


@dataclass(frozen=True)
class StoredDigest:
    """A row of the digest table; `heat` is as of `last_use` (Unix seconds)."""

    digest: bytes  # 16
    address: bytes  # 32
    tokens: int
    heat: float
    last_use: int


def pack_digest_row(row: StoredDigest) -> bytes:
    """Return the 64 bytes of `row`."""
    body = _DIGEST_ROW.pack(row.digest, row.address, row.tokens, row.heat, row.last_use)
    return body + _CRC.pack(zlib.crc32(body))


def unpack_digest_row(data: bytes | memoryview) -> StoredDigest | None:
    """Read one row; None for an empty or damaged one (it costs a hint, nothing else)."""
    body = bytes(data[: _DIGEST_ROW.size])
    if not any(body) or bytes(data[_DIGEST_ROW.size :]) != _CRC.pack(zlib.crc32(body)):
        return None
    return StoredDigest(*_DIGEST_ROW.unpack(body))


def lease_key(lease_id: str) -> int:
    """Return the 64-bit key under which a header table entry remembers its write lease; never 0."""
    return int.from_bytes(hashlib.blake2b(lease_id.encode(), digest_size=8).digest(), "little") or 1


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
