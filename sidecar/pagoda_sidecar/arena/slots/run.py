"""Runs: the stretches of chains that eviction weighs as one.

    root ── a ── b ── c ──┬── d ── e          run 1: a b c      (closed: something branched off at its end)
                          └── f ── g ── h     run 2: d e, run 3: f g h

A run begins where a chain begins or branches off another, and ends where something branches off it: an edge of the
radix tree. A conversation that goes on makes its run longer and keeps its name, so what is known of its former turns
speaks for the new one; a question about a document that many ask about begins a run of its own, for which the
document's fame says nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pagoda_sidecar.arena.slots.block import Block

if TYPE_CHECKING:
    from pagoda_sidecar.arena.slots.keep import Keep


@dataclass(slots=True, eq=False)
class ChainRun:
    """Consecutive blocks of one chain. The index keeps the first fields, the policy the last three."""

    head: bytes  # 16, the key of its first block: its name for ever, also after it was evicted
    tail: Block  # its last block, the only one that may be evicted
    num_blocks: int = 0
    is_closed: bool = False  # what comes after its end is a run of its own
    keeper: "Keep | None" = None  # what keeps it before others
    last_use: int = 0
    weight: float = 1.0  # as of `last_use`
    is_new: bool = False  # the request that made it has not ended, and weighs already


def run_of(block: Block) -> ChainRun:
    """Return the run of a named block."""
    assert block.run is not None, "a named block is in a run"
    return block.run
