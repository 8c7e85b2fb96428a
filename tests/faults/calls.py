"""The calls of one engine thread, drawn from its seed, and what is held against the oracle after each.

What must hold, whatever fails below: a position that a load's result counts had exactly its block's bytes when it was
copied; what nobody ever stored, or what was only ever stored by stores that failed, is not found; a call ends within
its deadline.
"""

import collections
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagoda_sidecar.client import DigestRow, LoadReport, TierClient, TierUnavailable
from tests.faults import universe

TIMEOUTS = (0.05, 0.3, 1.0, 2.0)
# What a call may take beyond its own timeout: the settlement's, and a machine with more to do than cores (10×)
SLACK_SECONDS = 10.0
LONGER_THAN_A_LEASE_SECONDS = 1.8
HAND_OVER_SECONDS = 1.0
# Outcomes of calls that (may) have reached nobody: they are not counted as operations
UNANSWERED = ("unavailable:no_sidecar", "unavailable:breaker", "unavailable:closed")


class SourceFailedError(Exception):
    """The device's copy failed, as it may."""


@dataclass(frozen=True)
class Chain:
    """One chain of the universe."""

    family: int
    addresses: Sequence[bytes]


class Ledger:
    """Counts of calls and outcomes, and what went wrong. Thread safe."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrongs: list[str] = []
        self._lock = threading.Lock()

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[name] += number

    def wrong(self, what: str) -> None:
        with self._lock:
            self.wrongs.append(what)

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self.counts)


class Caller:
    """One thread's sequence of calls: `step` makes the next one."""

    def __init__(self, client: Callable[[], TierClient], namespace: int, seed: str, ledger: Ledger) -> None:
        self._client = client
        self._namespace = namespace
        self._random = random.Random(seed)
        self._ledger = ledger
        self._allowed_seconds = 0.0
        self._calls: Sequence[tuple[int, str, Callable[[], None]]] = (
            (30, "lookup", self._look_up),
            (28, "load", self._load),
            (24, "store", self._store),
            (14, "report", self._report),
            (2, "ghost", self._look_for_a_ghost),
            (1, "failing", self._store_in_vain),
            (1, "hand_over", self._hand_over),
        )
        self._weights = [weight for weight, _, _ in self._calls]

    def step(self) -> None:
        """Make one call and check it."""
        ((_, name, call),) = self._random.choices(self._calls, self._weights)
        started = time.monotonic()
        try:
            call()
            outcome = "done"
        except TierUnavailable as error:
            outcome = f"unavailable:{error.reason}"
        except SourceFailedError:
            outcome = "source_failed"
        seconds = time.monotonic() - started
        if seconds > self._allowed_seconds + SLACK_SECONDS:
            self._ledger.wrong(f"{name} took {seconds:.1f} s of {self._allowed_seconds:.1f} s: {outcome}")
        self._ledger.count(f"{name}.{outcome}")
        if outcome in UNANSWERED:
            time.sleep(0.005)  # an engine would compute meanwhile
        else:
            self._ledger.count("calls")

    def _timeout(self) -> float:
        self._allowed_seconds = self._random.choice(TIMEOUTS)
        return self._allowed_seconds

    def _pick(self) -> Chain:
        """A chain; few families are asked for often, most seldom."""
        family = min(int(self._random.paretovariate(0.6)) - 1, universe.NUM_FAMILIES * 4) % universe.NUM_FAMILIES
        if self._random.random() < 0.2:
            family = self._random.randrange(universe.NUM_FAMILIES)
        addresses = universe.chain(family, self._random.randrange(universe.BRANCHES))
        return Chain(family, addresses[: self._random.randint(1, len(addresses))])

    def _look_up(self) -> None:
        chain = self._pick()
        parts = self._client().lookup(chain.addresses, self._timeout())
        position = 0
        for part in parts:
            if part.first != position or part.count < 1:
                self._ledger.wrong(f"lookup is not contiguous: {parts}")
            position += part.count
            self._ledger.count(f"found.{part.tier}", part.count)
        if position > len(chain.addresses):
            self._ledger.wrong(f"lookup found more than it was asked for: {parts}")

    def _look_for_a_ghost(self) -> None:
        kind = self._random.choice((universe.GHOSTS, universe.FAILING))
        family = kind + self._random.randrange(50)
        addresses = universe.chain(family, 0)
        parts = self._client().lookup(addresses, self._timeout())
        if parts:
            self._ledger.wrong(f"found what nobody stored: family {family}, {parts}")
        self._load_chain(Chain(family, addresses), 0)

    def _load(self) -> None:
        chain = self._pick()
        first = self._random.choice((0, 0, 0, self._random.randrange(len(chain.addresses))))
        self._load_chain(chain, first)

    def _load_chain(self, chain: Chain, first: int) -> None:
        stop = len(chain.addresses)
        behaviour = self._random.choices(("plain", "cancel", "fail", "slow"), (80, 10, 5, 5))[0]
        moment = self._random.randint(0, stop - first)
        is_back_first = self._random.random() < 0.4
        right: dict[int, bool] = {}
        num_polls = 0

        def sink(position: int, view: memoryview) -> None:
            if behaviour == "fail" and len(right) == moment:
                raise SourceFailedError
            if behaviour == "slow":
                time.sleep(0.02)
            copy = bytes(view)
            right[position] = copy == universe.expected(self._namespace, chain.addresses[position])

        def cancelled() -> bool:
            nonlocal num_polls
            num_polls += 1
            return behaviour == "cancel" and num_polls > moment

        timeout = self._timeout()
        if behaviour == "slow":
            self._allowed_seconds += 0.02 * stop
        arrived: list[tuple[int, str]] = []
        # What was computed meanwhile is not wanted any more: the floor rises with every look
        rises = is_back_first and self._random.random() < 0.3
        num_looks = 0

        def floor() -> int:
            nonlocal num_looks
            num_looks += rises
            return min(stop, first + num_looks // 2)

        result = self._client().load(
            universe.root(chain.family), chain.addresses, first, stop, sink, timeout, cancelled,
            arrived=lambda position, source: arrived.append((position, source)), back_first=is_back_first,
            floor=floor if is_back_first else None,
        )  # fmt: skip
        if [source for _, source in arrived] != list(result.sources):
            self._ledger.wrong(f"what arrived is not what counts: {arrived}, {result}")
        positions = [position for position, _ in arrived]
        step = -1 if is_back_first else 1
        begin = (positions or [first])[0] if is_back_first else first
        if positions != list(range(begin, begin + len(positions) * step, step)):
            self._ledger.wrong(f"not in order: {positions} from {first}, back first: {is_back_first}")
        if result.sources and chain.family >= universe.GHOSTS:
            self._ledger.wrong(f"loaded what nobody stored: {chain.family}")
        for position, source in arrived:
            if not right.get(position, False):
                self._ledger.wrong(f"wrong bytes from {source}: family {chain.family}, position {position}")
            self._ledger.count(f"loaded.{source}")
        self._ledger.count(f"load_end.{result.reason or 'whole'}")

    def _store(self) -> None:
        chain = self._pick()
        behaviour = self._random.choices(("plain", "fail", "slow", "very slow"), (1000, 40, 30, 2))[0]
        moment = self._random.randrange(len(chain.addresses))
        self._store_chain(chain, behaviour, moment)

    def _store_in_vain(self) -> None:
        """A store whose first block's copy fails: none of its blocks may ever be seen, for none was committed."""
        family = universe.FAILING + self._random.randrange(50)
        addresses = universe.chain(family, 0)
        self._store_chain(Chain(family, addresses), "fail", 0)

    def _store_chain(self, chain: Chain, behaviour: str, moment: int) -> None:
        def source(index: int, view: memoryview) -> None:
            if index == moment and behaviour == "slow":
                time.sleep(0.05)
            if index == moment and behaviour == "very slow":
                view[:100] = b"half of a copy that takes longer than a lease lives".ljust(100)
                time.sleep(LONGER_THAN_A_LEASE_SECONDS)
            if index >= moment and behaviour == "fail":
                view[:100] = b"half of a copy that failed".ljust(100)
                raise SourceFailedError
            view[:] = universe.payload(self._namespace, chain.addresses[index])

        timeout = self._timeout()
        if behaviour in ("slow", "very slow"):
            self._allowed_seconds += LONGER_THAN_A_LEASE_SECONDS
        result = self._client().store(universe.records(chain.family, chain.addresses), source, timeout)
        if result.stored + result.present + result.refused != len(chain.addresses):
            self._ledger.wrong(f"a store does not add up: {result} of {len(chain.addresses)}")
        if behaviour == "fail" and chain.family >= universe.FAILING and result.stored:
            self._ledger.wrong(f"a failed store counts blocks: {result}")
        self._ledger.count("stored_blocks", result.stored)
        self._ledger.count("refused_blocks", result.refused)

    def _report(self) -> None:
        chain = self._pick()
        address = chain.addresses[-1]
        rows = [DigestRow(address[:16], len(chain.addresses) * universe.BLOCK_TOKENS, address)]
        removed = [self._pick().addresses[-1]]
        load = LoadReport(1, 0, 0.1, 400.0, 1.0) if self._random.random() < 0.2 else None
        parked = [address] if self._random.random() < 0.1 else []
        self._client().report(rows, [address], removed, [address], load, self._timeout(), parked=parked)

    def _hand_over(self) -> None:
        self._allowed_seconds = HAND_OVER_SECONDS + 5.0
        self._client().hand_over(self._random.choice((0, 20_000, 10**9)), HAND_OVER_SECONDS)
