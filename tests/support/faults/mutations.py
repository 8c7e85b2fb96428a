"""What can be done to one record, question or answer on its way between a sidecar and memcached. Pure.

where   kind       what the sidecar, or memcached, gets to see
fetch   flip       one bit of a header field or of the payload is another one
        resigned   the same, but with a checksum of the header that fits again
        swap       the whole and valid record of another address
        truncate   the value ends early, and the line says so
        extend     the value is longer, and the line says so
        cut        half of the value, then the connection ends
        hang       half of the value, then silence
        swallow    the value lacks bytes that its line promised
        garble     a line that memcached does not speak
        repeat     the same answer twice
        opaque     an answer to a question that was not asked
        miss       no answer at all, as if memcached had evicted it
store   flip, resigned, swap, truncate, cut, hang, swallow as above, on the way in: damaged at rest
        refuse     SERVER_ERROR out of memory storing object
        fail       SERVER_ERROR without a reason that we know
ack     drop       stored, but nobody says so
        refuse     stored, but the answer says that there was no memory
        cut        stored, then the connection ends
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from pagoda_protocol.records import MAGIC, RECORD_HEADER_BYTES, RecordError, unpack_header

# (offset, bytes) in the record header; pagoda_protocol.records draws it
HEADER_FIELDS: Mapping[str, tuple[int, int]] = {
    "magic": (0, 4),
    "version": (4, 1),
    "codec": (5, 1),
    "flags": (6, 2),
    "namespace": (8, 16),
    "address": (24, 32),
    "parent": (56, 16),
    "index": (72, 4),
    "tokens": (76, 4),
    "payload_bytes": (80, 4),
    "tenant_tag": (84, 8),
    "xxh3": (92, 16),
    "reserved": (108, 16),
    "crc": (124, 4),
}
FIELDS = (*HEADER_FIELDS, "payload")
# Fields that say which bytes are right: under a header whose checksum fits again, these must be caught one by one
RESIGNED_FIELDS = ("magic", "version", "namespace", "address", "payload_bytes", "xxh3", "reserved", "payload")

KINDS: Mapping[str, tuple[str, ...]] = {
    "fetch": (
        "flip", "resigned", "swap", "truncate", "extend", "cut", "hang", "swallow", "garble", "repeat", "opaque",
        "miss",
    ),
    "store": ("flip", "resigned", "swap", "truncate", "cut", "hang", "swallow", "refuse", "fail"),
    "ack": ("drop", "refuse", "cut"),
}  # fmt: skip
_CRC_OFFSET = 124
OUT_OF_MEMORY = b"SERVER_ERROR out of memory storing object"
FAILED = b"SERVER_ERROR internal"


@dataclass(frozen=True)
class Fault:
    """One fault, done once. `field` and `bit` matter to flips alone; a bit beyond the field wraps around."""

    where: str
    kind: str
    field: str = ""
    bit: int = 0

    def __post_init__(self) -> None:
        assert self.kind in KINDS[self.where], f"no fault {self.kind} on a {self.where}"
        assert (self.field in FIELDS) == (self.kind in ("flip", "resigned")), f"a field for a flip alone: {self}"

    @property
    def name(self) -> str:
        """What it is counted as."""
        return ".".join(part for part in (self.where, self.kind, self.field) if part)


def fits(fault: Fault, value: bytes) -> bool:
    """Say whether a fault can be done to a value that may also be a split record's head or one of its parts."""
    if is_record(value):
        return True
    if fault.kind in ("flip", "resigned"):
        return fault.kind == "flip" and (fault.field == "payload") != value.startswith(MAGIC)
    return fault.kind != "swap" and len(value) > 1


def is_record(value: bytes | None) -> bool:
    """Say whether `value` is a whole record: a header, and a payload that is no split head's descriptor."""
    return value is not None and len(value) > RECORD_HEADER_BYTES + 8 and value.startswith(MAGIC)


def is_valid(record: bytes) -> bool:
    """Say whether a record's header and payload hold together."""
    try:
        header = unpack_header(record[:RECORD_HEADER_BYTES])
    except RecordError:
        return False
    return header.xxh3 == xxhash.xxh3_128_digest(record[RECORD_HEADER_BYTES:])


def address_of(record: bytes) -> bytes:
    """Return the address that a record states."""
    offset, size = HEADER_FIELDS["address"]
    return record[offset : offset + size]


def flip(record: bytes, field: str, bit: int, resigned: bool = False) -> bytes:
    """Return `record` with one bit of `field` flipped, and the header's checksum made to fit if `resigned`."""
    start = RECORD_HEADER_BYTES if record.startswith(MAGIC) else 0  # a part of a split record is all payload
    offset, size = HEADER_FIELDS.get(field, (start, len(record) - start))
    bit %= size * 8
    changed = bytearray(record)
    changed[offset + bit // 8] ^= 1 << bit % 8
    if resigned:
        struct.pack_into("<I", changed, _CRC_OFFSET, zlib.crc32(changed[:_CRC_OFFSET]))
    return bytes(changed)


def mutate(fault: Fault, record: bytes, other: bytes | None) -> bytes | None:
    """Return what is sent instead of `record`; None when the fault cannot be done (no `other` record was seen)."""
    if fault.kind in ("flip", "resigned"):
        return flip(record, fault.field, fault.bit, fault.kind == "resigned")
    if fault.kind == "swap":
        return other
    if fault.kind == "truncate":
        return record[: max(0, len(record) - 1 - fault.bit % len(record))]
    assert fault.kind == "extend", fault
    return record + bytes(1 + fault.bit % 64)
