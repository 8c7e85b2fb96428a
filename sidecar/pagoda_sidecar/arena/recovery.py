"""What a restarted sidecar believes of an arena it finds: sealed headers whose checksum holds, and nothing else.

Payloads are not looked at here (that would read the whole arena); each is hashed before it is handed out first.
"""

import math

from pagoda_protocol.records import RecordError, unpack_header
from pagoda_sidecar.arena.file import ArenaFile
from pagoda_sidecar.arena.layout import FREE, SEALED, WRITING
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.slots.index import RamIndex
from pagoda_sidecar.arena.slots.leases import Lease, Leases


def recover(arena: ArenaFile, namespace: bytes, is_lock_free: bool, index: RamIndex, leases: Leases) -> int:
    """Fill `index` and `leases` from the header table; return how many headers were damaged.

    A slot that was being written stays in quarantine while an engine may live, under the key of its lease. Records of
    another namespace and damaged headers are garbage, their slots free.
    """
    headers = arena.headers
    sealed: list[Block] = []
    held: list[Block] = []
    num_damaged = 0
    for slot in range(arena.geometry.num_slots):
        state = headers.state(slot)
        block = _sealed_block(arena, slot, namespace) if state == SEALED else None
        if block is not None:
            sealed.append(block)
        elif state == WRITING and not is_lock_free:
            held.append(_held_block(arena, slot, leases))
        elif state != FREE:
            num_damaged += state != WRITING and not _is_foreign(arena, slot, namespace)
            headers.free(slot)
    # Should one address have been sealed twice, the newer one is as good as the older and has its generation
    for block in index.restore(sorted(sealed, key=lambda block: -block.generation), held):
        headers.free(block.slot)
    return num_damaged


def _sealed_block(arena: ArenaFile, slot: int, namespace: bytes) -> Block | None:
    try:
        header = unpack_header(arena.headers.record(slot))
    except RecordError:
        return None
    if header.namespace != namespace or header.payload_bytes != arena.geometry.payload_bytes:
        return None
    return Block(
        header.address, header.parent, header.index, header.tokens, slot, arena.headers.generation(slot),
        header.tenant_tag, is_verified=False,
    )  # fmt: skip


def _held_block(arena: ArenaFile, slot: int, leases: Leases) -> Block:
    generation = arena.headers.generation(slot)
    block = Block(bytes(32), bytes(16), 0, 0, slot, generation, references=1, is_named=False)
    leases.hold(Lease(arena.headers.lease(slot), b"", True, math.inf, [block], is_lapsed=True))
    return block


def _is_foreign(arena: ArenaFile, slot: int, namespace: bytes) -> bool:
    """Whether the record is sound and merely of another namespace."""
    try:
        return unpack_header(arena.headers.record(slot)).namespace != namespace
    except RecordError:
        return False
