"""What a memcached item of ours holds, and what must be true of it before anybody may use it.

    client flag 0, a whole record    record header 128 │ payload
    client flag 1, a split head      record header 128 │ part bytes u32 │ number of parts u32     (little-endian)
    a part                           payload[i * part bytes : (i + 1) * part bytes]

Pure: no sockets, no clocks.
"""

import struct
from collections.abc import Iterator

import xxhash

from pagoda_protocol.records import RECORD_HEADER_BYTES, RecordError, RecordHeader, unpack_header
from pagoda_sidecar.pool.keys import KEY_BYTES

FLAG_WHOLE = 0
FLAG_SPLIT = 1

# memcached counts against its item limit: its own header 48, CAS 8, client flags 4, the key and its zero, "\r\n".
_ITEM_OVERHEAD_BYTES = 48 + 8 + 4 + KEY_BYTES + 1 + 2

_DESCRIPTOR = struct.Struct("<II")
DESCRIPTOR_BYTES = _DESCRIPTOR.size


def value_limit(item_limit_bytes: int) -> int:
    """Return the longest value that fits an item of a node with `item_limit_bytes` (`item_size_max`)."""
    return item_limit_bytes - _ITEM_OVERHEAD_BYTES


def part_size(payload_bytes: int, value_limit_bytes: int) -> int | None:
    """Return the bytes of each part but the last, or None when the record fits one item.

    Parts are made equal, not full, so that memcached's slab classes are not left with one odd rest per record.
    """
    if RECORD_HEADER_BYTES + payload_bytes <= value_limit_bytes:
        return None
    num_parts = -(-payload_bytes // value_limit_bytes)
    return -(-payload_bytes // num_parts)


def part_ranges(payload_bytes: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield `(start, end)` of each part in the payload."""
    for start in range(0, payload_bytes, part_bytes):
        yield start, min(start + part_bytes, payload_bytes)


def pack_descriptor(payload_bytes: int, part_bytes: int) -> bytes:
    """Return what follows the record header in a split head."""
    return _DESCRIPTOR.pack(part_bytes, -(-payload_bytes // part_bytes))


def unpack_descriptor(data: bytes | bytearray, payload_bytes: int) -> int:
    """Return the part size that a split head states.

    Raises:
        RecordError: the parts do not make up the payload.
    """
    part_bytes, num_parts = _DESCRIPTOR.unpack(data)
    if part_bytes == 0 or num_parts != -(-payload_bytes // part_bytes):
        raise RecordError("parts")
    return int(part_bytes)


def check_header(data: bytes | bytearray, namespace: bytes, address: bytes) -> RecordHeader:
    """Read the header of the record that was asked for as `address`.

    Raises:
        RecordError: it is none, or another block's; the reason is a metric label.
    """
    header = unpack_header(data)
    if header.namespace != namespace[:16]:
        raise RecordError("namespace")
    if header.address != address:
        raise RecordError("address")
    return header


def check_payload(header: RecordHeader, payload: memoryview) -> None:
    """Hold a payload against its header.

    Raises:
        RecordError: it has another length, or other bytes than were sealed.
    """
    if len(payload) != header.payload_bytes:
        raise RecordError("length")
    if xxhash.xxh3_128_digest(payload) != header.xxh3:
        raise RecordError("checksum")
