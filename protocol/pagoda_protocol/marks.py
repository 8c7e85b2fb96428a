"""Short marks by which two who cannot see each other's data tell whether they have the same.

Hexadecimal, 16 digits of a SHA-256: against accidents, not against an adversary.
"""

import hashlib
from collections.abc import Iterable

_DIGITS = 16


def mark_of(data: bytes) -> str:
    """Return the mark of some bytes."""
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


def next_mark(former: str, data: bytes) -> str:
    """Return the mark of all that `former` marks and some bytes after it: what comes again gets another one."""
    return mark_of(former.encode() + data)


def nodes_mark(names: Iterable[str]) -> str:
    """Return the mark of a list of memcached nodes, by name and in whatever order."""
    return mark_of("\n".join(sorted(names)).encode())
