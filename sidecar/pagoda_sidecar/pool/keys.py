"""Item keys: printable, 46 bytes, derived from the namespace and the block's address alone.

    p1:<base64url of 32 bytes>    the record, or the head of a split one
    p1+<base64url of 32 bytes>    one part, of address ‖ xxh3 ‖ index

A part's key holds the checksum of the whole payload, so parts of two different payloads for one address (two types of
machine computed it) never mix. The hash is keyed with the namespace, so equal addresses in two namespaces never meet.
Tokens and tenants are not in here; whoever can list keys learns nothing but how many there are.
"""

import base64
import hashlib

KEY_BYTES = 46


def record_key(namespace: bytes, address: bytes) -> bytes:
    """Return the key of the record of `address`."""
    return b"p1:" + _encode(namespace, address)


def part_key(namespace: bytes, address: bytes, xxh3: bytes, index: int) -> bytes:
    """Return the key of part `index` of the split record of `address` whose whole payload has the checksum `xxh3`."""
    return b"p1+" + _encode(namespace, address + xxh3 + index.to_bytes(4, "little"))


def _encode(namespace: bytes, data: bytes) -> bytes:
    return base64.urlsafe_b64encode(hashlib.blake2b(data, digest_size=32, key=namespace).digest()).rstrip(b"=")
