"""Stable hashes of chains of full blocks.

    root ──► a_0 = SHA-256(root ‖ tokens_0 ‖ extras_0) ──► a_1 = SHA-256(a_0 ‖ tokens_1 ‖ extras_1) ──► …

An address names the KV of one block given everything before it. Two processes, machines or versions that compute the
same chain get the same bytes: nothing here is seeded, salted or dependent on the process.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence

ADDRESS_BYTES = 32


def block_address(parent: bytes, tokens: Sequence[int], extras: Mapping[int, bytes] | None = None) -> bytes:
    """Return the 32-byte address of the block holding `tokens` after `parent`.

    `tokens` go in as little-endian u32; each extra as tag u8, length u32le, bytes, in ascending order of tags. How many
    tokens a block has is part of the namespace, hence of the root, so none of these bytes can be read in two ways.

    Raises:
        ValueError: `parent` is not 32 bytes, or a token or tag is out of range.
    """
    if len(parent) != ADDRESS_BYTES:
        raise ValueError(f"parent: expected {ADDRESS_BYTES} bytes, got {len(parent)}")
    try:
        data = struct.pack(f"<{len(tokens)}I", *tokens)
        for tag in sorted(extras or ()):
            value = extras[tag]  # type: ignore[index]
            data += struct.pack("<BI", tag, len(value)) + value
    except struct.error as error:
        raise ValueError(f"tokens and extra tags must be in range: {error}") from error
    return hashlib.sha256(parent + data).digest()


def chain_addresses(root: bytes, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """Return the address of every full block of `tokens`, first to last; a partial tail has none."""
    assert block_tokens > 0, block_tokens
    addresses = []
    parent = root
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = block_address(parent, tokens[start : start + block_tokens])
        addresses.append(parent)
    return addresses


# What a process must compute to be sure that it agrees with every other one (a wrong byte order or a patched hash
# shows here at start, not as a cache that never hits).
_SELF_TEST_TOKENS = (0, 1, 49151, 2**31, 2**32 - 1, 7, 7, 7)
SELF_TEST_ADDRESS = bytes.fromhex("10b7f88396b432053bd02159337175f8aeb6c0cb933e8000d0cffb51df42e292")


def self_test_address() -> bytes:
    """Compute the golden chain as this process sees it; equal to `SELF_TEST_ADDRESS` unless something is broken."""
    return chain_addresses(bytes(range(ADDRESS_BYTES)), _SELF_TEST_TOKENS, 4)[-1]
