"""Where the tokens of a step stand in the batch. Pure arithmetic.

PACKED   chunks one behind the other, padded at the end
ALIGNED  each chunk in tiles of its own, every token at row (position mod tile): a row's place, too, is then a
         function of its position alone. Costs a tile per sequence; used in exact mode where a kernel turns out to
         treat rows of one call differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pagoda_engine.model.interface import SequenceChunk
from pagoda_engine.model.linear import EXACT_ROWS


class Placement(Enum):
    """How rows are placed in exact mode; see the file's head."""

    PACKED = "packed"
    ALIGNED = "aligned"


@dataclass(frozen=True)
class RowLayout:
    """The row of each chunk's first token, its others following, and the number of rows with padding."""

    first_rows: tuple[int, ...]
    num_rows: int


def place_rows(chunks: Sequence[SequenceChunk], *, exact: bool, placement: Placement) -> RowLayout:
    """Give every token a row."""
    if exact and placement is Placement.ALIGNED:
        return _aligned(chunks)
    first_rows, row = [], 0
    for chunk in chunks:
        first_rows.append(row)
        row += len(chunk.tokens)
    return RowLayout(tuple(first_rows), _whole_tiles(row) if exact else bucket(row))


def _aligned(chunks: Sequence[SequenceChunk]) -> RowLayout:
    first_rows, row = [], 0
    for chunk in chunks:
        first_rows.append(row + chunk.start % EXACT_ROWS)
        row += _whole_tiles(chunk.start % EXACT_ROWS + len(chunk.tokens))
    return RowLayout(tuple(first_rows), row)


def _whole_tiles(rows: int) -> int:
    return -(-rows // EXACT_ROWS) * EXACT_ROWS


def bucket(rows: int) -> int:
    """Round a number of rows up to one of few: oneDNN generates code for every number of rows it meets."""
    if rows <= 8:
        return 1 << (rows - 1).bit_length()
    return -(-rows // 16) * 16
