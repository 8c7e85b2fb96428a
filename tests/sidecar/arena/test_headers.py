"""The header table's writes, word by word: a kill may come between any two of them."""

import pytest

from pagoda_protocol.records import RecordHeader, pack_header
from pagoda_sidecar.arena.headers import HeaderTable
from pagoda_sidecar.arena.layout import FREE, SEALED, WRITING, fixed_geometry

GEOMETRY = fixed_geometry(64 * 1024, 1000)
RECORD = pack_header(RecordHeader(b"n" * 16, b"a" * 32, b"p" * 16, 3, 4, 1000, 7, b"x" * 16))


class Killed(Exception):
    """The process ends here."""


class DyingWords:
    """Words of which only the first few writes happen."""

    def __init__(self, words: memoryview, num_writes: int) -> None:
        self._words, self._left = words, num_writes

    def __setitem__(self, word: int, value: int) -> None:
        if self._left == 0:
            raise Killed
        self._left -= 1
        self._words[word] = value


@pytest.mark.parametrize("num_writes", range(3))
@pytest.mark.parametrize("was", [FREE, SEALED])
def test_a_kill_in_the_middle_of_a_write_never_leaves_a_slot_in_the_name_of_a_former_lease(
    num_writes: int, was: int
) -> None:
    """Such a slot would be quarantined until its engine ends: its lease was settled long ago."""
    table = HeaderTable(memoryview(bytearray(64 * 1024)), GEOMETRY)
    table.invalidate(1, 5, 0xAAAA)
    table.seal(1, RECORD)
    if was == FREE:
        table.free(1)
    words, table._words = table._words, DyingWords(table._words, num_writes)  # type: ignore[assignment]
    with pytest.raises(Killed):
        table.invalidate(1, 6, 0xBBBB)
    table._words = words
    assert table.state(1) == was
    assert table.record(1) == RECORD
    table.invalidate(1, 7, 0xCCCC)
    assert (table.state(1), table.generation(1), table.lease(1)) == (WRITING, 7, 0xCCCC)
