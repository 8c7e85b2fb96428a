"""How many different things there were, in a few kilobytes: a HyperLogLog that counts while it is filled.

The estimate is the martingale (historic inverse probability) one: an item that changes a register stands for all that
would have changed none, so it counts 1/p, where p was the chance of a new item to change anything. That makes every
single increase an unbiased count of "new since the start", which a set of registers alone cannot give. Standard error
0.83/√registers (Cohen 2015, "All-Distances Sketches, Revisited"; Ting 2014, "Streamed Approximate Counting").
"""

_HASH_BITS = 64


class DistinctCounter:
    """2^`index_bits` registers of a byte each. Items are uniform hashes of at least 8 bytes, such as addresses."""

    def __init__(self, index_bits: int = 14) -> None:
        self._index_bits = index_bits
        self._rest_bits = _HASH_BITS - index_bits
        self._registers = bytearray(1 << index_bits)
        # The chance of a new item to change a register, times 2^(rest_bits + 1) times the number of registers: whole,
        # so that no rounding adds up.
        self._chance = len(self._registers) << (self._rest_bits + 1)

    def add(self, item: bytes) -> float:
        """Add an item; return how many new ones it stands for: 0 if it was there, 1 on average if it was not."""
        value = int.from_bytes(item[:8], "little")
        index, rest = value & (len(self._registers) - 1), value >> self._index_bits
        rank = self._rest_bits + 1 - rest.bit_length()  # leading zeros of the rest, plus one
        old = self._registers[index]
        if rank <= old:
            return 0.0
        weight = (len(self._registers) << (self._rest_bits + 1)) / self._chance
        self._registers[index] = rank
        one = self._rest_bits + 1
        self._chance += (1 << (one - rank)) - (1 << (one - old))
        return weight
