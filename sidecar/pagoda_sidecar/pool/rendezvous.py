"""Rendezvous hashing over node names: each address has a score at each node and lives where it is highest.

A node that goes takes only its own addresses with it, one that comes takes an even share from all others, and every
pod that knows the same names agrees without talking. Names, never network addresses: a pod that comes back under a
new IP keeps its records' places. (Thaler and Ravishankar, 1998.)
"""

from collections.abc import Iterable

import xxhash


class Rendezvous:
    """The placement over one fixed set of names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._seeds = [(name, xxhash.xxh3_64_intdigest(name.encode())) for name in names]

    def owner(self, address: bytes) -> str:
        """Return the name that `address` lives on.

        Raises:
            ValueError: there are no names.
        """
        return max(self._seeds, key=lambda seed: xxhash.xxh3_64_intdigest(address, seed[1]))[0]
