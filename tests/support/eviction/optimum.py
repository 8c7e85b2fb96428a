"""What the best possible cache of blocks would have hit, knowing the future: an upper bound that can be reached.

Belady's rule with bypass: keep the blocks whose next use is nearest, and do not store one whose next use is farther
than that of all that is kept. For blocks of one size no rule hits more, even if hits need no prefix. And its hits are
usable: whoever uses a block uses all before it in the chain, so nothing is used again later than what follows on it,
and with ties broken against the deeper block no block is given up before its children. `optimum` asserts that.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.eviction.traces import Request

_NEVER = 2**62


@dataclass(frozen=True)
class Optimum:
    """Blocks of prompts: hit by the best possible cache, and by one without bounds."""

    num_hits: int
    num_hits_unbounded: int


def optimum(trace: Sequence[Request], num_slots: int) -> Optimum:
    """Return what a cache of `num_slots` could have hit of `trace` at best."""
    next_uses = _next_uses(trace)
    kept: dict[bytes, int] = {}  # address → order of its next use
    farthest: list[tuple[int, bytes]] = []
    seen: set[bytes] = set()
    num_hits = num_unbounded = number = 0
    for request in trace:
        is_usable = True
        for position, address in enumerate(request.chain):
            is_hit = address in kept
            assert is_usable or not is_hit, "the best cache holds a block without its parent"
            is_usable = is_hit
            num_hits += is_hit and position < request.num_prompt
            num_unbounded += address in seen and position < request.num_prompt
            seen.add(address)
            _keep(kept, farthest, address, next_uses[number], num_slots)
            number += 1
    return Optimum(num_hits, num_unbounded)


def _next_uses(trace: Sequence[Request]) -> list[int]:
    accesses = [address for request in trace for address in request.chain]
    next_uses, later = [_NEVER] * len(accesses), dict[bytes, int]()
    for number in reversed(range(len(accesses))):
        next_uses[number] = later.get(accesses[number], _NEVER)
        later[accesses[number]] = number
    return next_uses


def _keep(
    kept: dict[bytes, int], farthest: list[tuple[int, bytes]], address: bytes, next_use: int, num_slots: int
) -> None:
    """Keep `address` if it is used again before something else that is kept."""
    if next_use == _NEVER:
        kept.pop(address, None)
        return
    if address not in kept and len(kept) >= num_slots:
        while kept.get(farthest[0][1]) != -farthest[0][0]:
            heapq.heappop(farthest)
        if -farthest[0][0] <= next_use:
            return
        del kept[heapq.heappop(farthest)[1]]
    kept[address] = next_use
    heapq.heappush(farthest, (-next_use, address))
