"""The header table in a mapped arena: states, generations and record headers.

Only the sidecar writes; both sides read. Words are written whole (aligned 64-bit stores), in the order that makes the
seqlock work:

    writer:  generation := new, lease, state := WRITING … payload …        record header, state := SEALED
    reader:  state = SEALED and generation = mine       … copy …           the same again, else it was a miss

A writer killed between two words leaves what was there, sealed or free, or a slot whose writer is known by its lease.
"""

from pagoda_protocol.records import RECORD_HEADER_BYTES
from pagoda_sidecar.arena.layout import (
    BOOT_OFFSET,
    ENTRY_BYTES,
    ENTRY_WORDS,
    FREE,
    LEASE_WORD,
    RECORD_OFFSET,
    SEALED,
    WRITING,
    Geometry,
)

_WORD = 2**64 - 1


class HeaderTable:
    """A view of the header table of `mapping`, a writable or read-only view of the whole arena file."""

    def __init__(self, mapping: memoryview, geometry: Geometry) -> None:
        end = geometry.entry_offset(geometry.num_slots)
        self._bytes = mapping[geometry.header_offset : end]
        self._words = self._bytes.cast("Q")

    def state(self, slot: int) -> int:
        """Return FREE, WRITING or SEALED (anything else is damage)."""
        return self._words[slot * ENTRY_WORDS]

    def generation(self, slot: int) -> int:
        """Return the generation under which the slot was handed out last."""
        return self._words[slot * ENTRY_WORDS + 1]

    def lease(self, slot: int) -> int:
        """Return the key of the lease that writes or wrote the slot."""
        return self._words[slot * ENTRY_WORDS + LEASE_WORD]

    def is_sealed(self, slot: int, generation: int) -> bool:
        """The reader's half of the seqlock, to be asked before and after the copy."""
        return self.state(slot) == SEALED and self.generation(slot) == generation

    def is_writable(self, slot: int, generation: int) -> bool:
        """Whether the slot is still lent to the holder of `generation` for writing."""
        return self.state(slot) == WRITING and self.generation(slot) == generation

    def record(self, slot: int) -> bytes:
        """Return a copy of the slot's record header, unchecked."""
        start = slot * ENTRY_BYTES + RECORD_OFFSET
        return bytes(self._bytes[start : start + RECORD_HEADER_BYTES])

    def invalidate(self, slot: int, generation: int, lease: int) -> None:
        """Begin a write: whoever still reads the slot's former content will notice."""
        word = slot * ENTRY_WORDS
        self._words[word + 1] = generation
        self._words[word + LEASE_WORD] = lease
        self._words[word] = WRITING

    def seal(self, slot: int, record: bytes) -> None:
        """End a write: the payload is complete, the state comes last."""
        start = slot * ENTRY_BYTES + RECORD_OFFSET
        self._bytes[start : start + RECORD_HEADER_BYTES] = record
        self._words[slot * ENTRY_WORDS] = SEALED

    def free(self, slot: int) -> None:
        """Give the slot up; its generation stays so that it can be seen to never return."""
        self._words[slot * ENTRY_WORDS] = FREE

    def release(self) -> None:
        """Drop the views, so that the mapping can be closed."""
        self._words.release()
        self._bytes.release()


def read_boot_count(mapping: memoryview) -> int | None:
    """Return how often a sidecar has opened this arena, None when the two words contradict each other.

    The count is written before its complement, so a complement one behind means a boot that was killed before it
    lent anything out.
    """
    words = mapping[BOOT_OFFSET : BOOT_OFFSET + 16].cast("Q")
    count, complement = words[0], words[1] ^ _WORD
    words.release()
    return count if complement in (count, count - 1) else None


def write_boot_count(mapping: memoryview, count: int) -> None:
    """Store the boot count of this life, before the first generation is handed out."""
    words = mapping[BOOT_OFFSET : BOOT_OFFSET + 16].cast("Q")
    words[0] = count
    words[1] = count ^ _WORD
    words.release()
