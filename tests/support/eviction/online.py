"""What is possible without knowing the future, where documents are asked about by chance and nothing else is repeated.

Both know where documents end, hold nothing else, and refuse what is worth less than all they hold, at once: no policy
of a real tier can do so. On traces such as `zipf` and `zipf_and_scan` only.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from tests.support.eviction.traces import Request


def hits_of_counting(trace: Sequence[Request], num_slots: int) -> int:
    """Return the hits of a cache that remembers for ever how often each document was asked for."""
    return _hits(trace, num_slots, None)


def hits_of_knowing(trace: Sequence[Request], num_slots: int) -> int:
    """Return the hits of a cache that knows beforehand how often each document will be asked for, but not when."""
    return _hits(trace, num_slots, Counter(request.chain[0] for request in trace))


def _hits(trace: Sequence[Request], num_slots: int, known: Counter[bytes] | None) -> int:
    sizes, held = _document_sizes(trace), dict[bytes, int]()
    worth: dict[bytes, tuple[int, int]] = {}
    lowest: list[tuple[tuple[int, int], bytes]] = []
    num_hits, room = 0, num_slots
    for number, request in enumerate(trace):
        head = request.chain[0]
        num_hits += min(held.get(head, 0), request.num_prompt)
        worth[head] = (worth.get(head, (0, 0))[0] + 1 if known is None else known[head], number)
        if head not in held:
            heapq.heappush(lowest, (worth[head], head))
        size = sizes.get(head, len(request.chain))
        room -= size - held.get(head, 0)
        held[head] = size
        while room < 0:
            rank, victim = lowest[0]
            if worth[victim] > rank:
                heapq.heapreplace(lowest, (worth[victim], victim))
                continue
            given = min(held[victim], -room)
            room, held[victim] = room + given, held[victim] - given
            if not held[victim]:
                del held[victim]
                heapq.heappop(lowest)
    return num_hits


def _document_sizes(trace: Sequence[Request]) -> dict[bytes, int]:
    """Return how many blocks the chains with the same first block share."""
    first: dict[bytes, tuple[bytes, ...]] = {}
    sizes: dict[bytes, int] = {}
    for request in trace:
        head = request.chain[0]
        if head not in first:
            first[head] = request.chain
        elif head not in sizes:
            both = zip(first[head], request.chain, strict=False)
            sizes[head] = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
    return sizes
