"""Traces: requests as chains of block addresses, from a seed. A block of an answer is stored but was not asked for."""

import bisect
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ADDRESS_BYTES = 32


@dataclass(frozen=True)
class Request:
    """`chain[:num_prompt]` is looked up; all of `chain` is stored in the end."""

    chain: tuple[bytes, ...]
    num_prompt: int


def zipf(num_requests: int, seed: int = 1, num_documents: int = 600, exponent: float = 1.0) -> Iterator[Request]:
    """Yield questions about documents of 4 to 40 blocks, the k-th most popular asked about k^-exponent as often."""
    chance = random.Random(seed)
    draw = _Popularity(chance, num_documents, exponent)
    documents = [_fresh(chance, 4, 40) for _ in range(num_documents)]
    for _ in range(num_requests):
        yield _asked(chance, documents[draw()] + _fresh(chance, 1, 3))


def scan(seed: int) -> Iterator[Request]:
    """Yield prompts of 4 to 60 blocks that nobody repeats, for ever."""
    chance = random.Random(seed)
    while True:
        yield _asked(chance, _fresh(chance, 4, 60))


def zipf_and_scan(
    num_requests: int, seed: int = 1, num_documents: int = 600, one_off: float = 0.3, num_burst: int = 100
) -> Iterator[Request]:
    """Yield `zipf` with one-off prompts strewn in, and half way a burst of nothing but those."""
    chance, once = random.Random(seed + 1000), scan(seed + 2000)
    for number, request in enumerate(zipf(num_requests, seed, num_documents)):
        while chance.random() < one_off:
            yield next(once)
        if number == num_requests // 2:
            yield from itertools.islice(once, num_burst)
        yield request


def sessions(num_requests: int, seed: int = 2, num_alive: int = 150, num_turns: int = 6) -> Iterator[Request]:
    """Yield turns of conversations, of which `num_alive` are going on; each has its history for a prompt.

    Some go on quickly, some slowly; one ends after `num_turns` turns on average and another begins. Five system
    prompts are shared by all.
    """
    chance = random.Random(seed)
    draw = _Popularity(chance, 5, 1.0)
    systems = [_fresh(chance, 4, 20) for _ in range(5)]
    alive = [systems[draw()] + _fresh(chance, 1, 12) for _ in range(num_alive)]
    for _ in range(num_requests):
        which = int(num_alive * chance.random() ** 2)
        turn = Request(alive[which] + _fresh(chance, 2, 8), len(alive[which]))
        yield turn
        alive[which] = turn.chain + _fresh(chance, 1, 3)
        if chance.random() * num_turns < 1:
            alive[which] = systems[draw()] + _fresh(chance, 1, 12)


def mixed(num_requests: int, seed: int = 3) -> Iterator[Request]:
    """Yield two fifths questions about documents, two fifths conversations, one fifth one-off prompts."""
    chance = random.Random(seed)
    sources = [zipf(num_requests, seed + 1000, 400), sessions(num_requests, seed + 2000, 80), scan(seed + 3000)]
    for _ in range(num_requests):
        yield next(chance.choices(sources, (2, 2, 1))[0])


class _Popularity:
    """Draws from `number` things with Zipf's probabilities, in an order of its own."""

    def __init__(self, chance: random.Random, number: int, exponent: float) -> None:
        self._chance = chance
        self._sums = list(itertools.accumulate((rank + 1) ** -exponent for rank in range(number)))
        self._order = chance.sample(range(number), number)

    def __call__(self) -> int:
        return self._order[bisect.bisect(self._sums, self._chance.random() * self._sums[-1])]


def _fresh(chance: random.Random, least: int, most: int) -> tuple[bytes, ...]:
    return tuple(chance.randbytes(ADDRESS_BYTES) for _ in range(chance.randint(least, most)))


def _asked(chance: random.Random, prompt: tuple[bytes, ...]) -> Request:
    return Request(prompt + _fresh(chance, 1, 3), len(prompt))


def num_prompt_blocks(trace: Sequence[Request]) -> int:
    """Return how many blocks were asked for in all."""
    return sum(request.num_prompt for request in trace)
