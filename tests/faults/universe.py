"""Every block there is, and what it must hold: all pure functions of numbers. Shared by engines and tests."""

import functools
import hashlib
import os
from collections.abc import Sequence

from pagoda_protocol.addresses import chain_addresses
from pagoda_sidecar.client import BlockRecord, EngineIdentity

PAYLOAD_BYTES = 6000  # two pages, and two items at a node whose limit is 4 KiB
BLOCK_TOKENS = 4
NUM_NAMESPACES = 2
NUM_TENANTS = 3
NUM_FAMILIES = 240
BRANCHES = 3
TRUNK_BLOCKS = 4
LONGEST_BRANCH = 6
# Chains beyond these numbers are never stored; of the first kind nobody even tries, of the second each store fails
GHOSTS, FAILING = 10**6, 2 * 10**6


def namespace(number: int) -> bytes:
    """32 bytes."""
    return hashlib.sha256(b"namespace %d" % number).digest()


def root(family: int) -> bytes:
    """What a family's first address is chained from: its tenant's."""
    return hashlib.sha256(b"tenant %d" % (family % NUM_TENANTS)).digest()


def tenant_tag(family: int) -> int:
    """The tag in the record headers of a family."""
    return int.from_bytes(root(family)[:8], "little")


@functools.lru_cache(maxsize=4096)
def chain(family: int, branch: int) -> tuple[bytes, ...]:
    """The addresses of one chain; the branches of a family share their first TRUNK_BLOCKS."""
    branch_blocks = 1 + (family + branch * 7) % LONGEST_BRANCH
    trunk = range(family * 1000, family * 1000 + TRUNK_BLOCKS * BLOCK_TOKENS)
    rest = range(branch * 500, branch * 500 + branch_blocks * BLOCK_TOKENS)
    return tuple(chain_addresses(root(family), [*trunk, *rest], BLOCK_TOKENS))


@functools.lru_cache(maxsize=8192)
def payload(namespace_number: int, address: bytes) -> bytes:
    """What an engine stores under the address."""
    return hashlib.shake_128(b"%d" % namespace_number + address).digest(PAYLOAD_BYTES)


def records(family: int, addresses: Sequence[bytes], first: int = 0) -> list[BlockRecord]:
    """The records of `addresses[first:]`, a chain of `family`."""
    parents = [root(family), *addresses]
    return [
        BlockRecord(addresses[index], parents[index], index, BLOCK_TOKENS, tenant_tag(family))
        for index in range(first, len(addresses))
    ]


def identity(namespace_number: int) -> EngineIdentity:
    """Who an engine of that namespace says it is."""
    return EngineIdentity(namespace(namespace_number), PAYLOAD_BYTES, BLOCK_TOKENS, ("m",), b"t" * 16)


def expected(namespace_number: int, address: bytes) -> bytes:
    """What the block must hold, to its last byte; something else where a test wants to see that this is noticed."""
    return payload(namespace_number + int("PAGODA_FAULT_ORACLE" in os.environ), address)
