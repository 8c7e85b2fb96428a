"""The record header: 128 bytes, little-endian, in front of every block that leaves the device.

    offset size
    0      4    magic "PGDK"
    4      1    version
    5      1    codec
    6      2    flags: 1 handed over, 2 proof
    8      16   namespace, its first 16 bytes
    24     32   address
    56     16   parent, the first 16 bytes of the previous address or of the root
    72     4    block index in its chain
    76     4    tokens
    80     4    payload length in bytes
    84     8    tenant tag
    92     16   xxh3-128 of the payload
    108    16   reserved, zero
    124    4    crc32 of the 124 bytes before it

The parent and the index let a restarted sidecar evict leaves first; the tag carries quotas. "Handed over" stands in
the pool only: a pod that left, or whose engine died, pushed the record for its sessions, not because it was used twice.
"Proof" marks a record that an engine wrote to see whether a tier works: nobody's cache, not to be kept.
"""

import struct
import zlib
from dataclasses import dataclass

RECORD_HEADER_BYTES = 128
MAGIC = b"PGDK"
VERSION = 1
CODEC_RAW = 0
HANDED_OVER = 1
PROOF = 2
# How a payload is encoded, by the name that manifests and namespaces use.
CODECS = {"Raw": CODEC_RAW, "Int8": 1, "Int4": 2, "Fp8": 3, "Nvfp4": 4}

_LAYOUT = struct.Struct("<4sBBH16s32s16sIIIQ16s16s")
_CRC = struct.Struct("<I")
_RESERVED = bytes(16)


class RecordError(ValueError):
    """Bytes that are no record header of ours. `reason` is a metric label: magic, version, crc, reserved or length."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a record header: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class RecordHeader:
    """What a sealed block says of itself. Byte fields have the lengths drawn at the head of this file."""

    namespace: bytes  # 16
    address: bytes  # 32
    parent: bytes  # 16
    index: int
    tokens: int
    payload_bytes: int
    tenant_tag: int
    xxh3: bytes  # 16
    codec: int = CODEC_RAW
    flags: int = 0


def pack_header(header: RecordHeader) -> bytes:
    """Return the 128 bytes of `header`.

    Raises:
        ValueError: a byte field has the wrong length or a number does not fit.
    """
    for name, value, length in (
        ("namespace", header.namespace, 16),
        ("address", header.address, 32),
        ("parent", header.parent, 16),
        ("xxh3", header.xxh3, 16),
    ):
        if len(value) != length:
            raise ValueError(f"{name}: expected {length} bytes, got {len(value)}")
    try:
        body = _LAYOUT.pack(
            MAGIC, VERSION, header.codec, header.flags, header.namespace, header.address, header.parent, header.index,
            header.tokens, header.payload_bytes, header.tenant_tag, header.xxh3, _RESERVED,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"a number does not fit its field: {error}") from error
    return body + _CRC.pack(zlib.crc32(body))


def unpack_header(data: bytes | bytearray | memoryview) -> RecordHeader:
    """Read and check 128 bytes.

    Raises:
        RecordError: with the reason, for anything that `pack_header` could not have written.
    """
    if len(data) != RECORD_HEADER_BYTES:
        raise RecordError("length")
    body = bytes(data[: _LAYOUT.size])
    if body[:4] != MAGIC:
        raise RecordError("magic")
    if _CRC.unpack(data[_LAYOUT.size :])[0] != zlib.crc32(body):
        raise RecordError("crc")
    _, version, codec, flags, namespace, address, parent, index, tokens, payload_bytes, tag, xxh3, reserved = (
        _LAYOUT.unpack(body)
    )
    if version != VERSION:
        raise RecordError("version")
    if reserved != _RESERVED:
        raise RecordError("reserved")
    return RecordHeader(namespace, address, parent, index, tokens, payload_bytes, tag, xxh3, codec, flags)
