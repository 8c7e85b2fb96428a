"""One load of one request: what it is for, how far it is, and how long its request waits for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagoda_engine.core.landing import Landing
from pagoda_engine.core.prefix import Block
from pagoda_engine.core.request import Request
from pagoda_engine.core.throughput import ComputePrice
from pagoda_engine.core.weighing import LoadPrice, Stretch

STUCK_SECONDS = 0.05  # a request waits for one block that is being copied; then it computes it elsewhere
_GRACE_SECONDS = 0.5  # past its deadlines a client's call is given up
_LOOKUP_SHARE = 0.02  # of the recompute time that a lookup is waited for
_LOOKUP_SECONDS = 0.01  # or so long, where that is within the share of all waiting
_WAIT_SHARE = 0.08  # that lookup and first blocks are waited for in all: with what happens around it a tenth
_UNKNOWN_SECONDS = 0.05  # while nobody knows how fast this engine computes
_SAVED_SHARE = 0.25  # of what the blocks that came would have taken to compute: waiting may go on so much longer


@dataclass(eq=False)
class Leg:
    """One call of the client: blocks [first, stop) from one end. Written by the tier thread, read by the engine's."""

    first: int
    stop: int
    is_race: bool
    tiers: list[str]  # of each block
    prices: dict[str, LoadPrice]
    started_at: float
    arrivals: list[tuple[float, int, str]] = field(default_factory=list)  # (when, position, source)

    @classmethod
    def over(cls, first: int, stretches: Sequence[tuple[str, Stretch]], is_race: bool, started_at: float) -> "Leg":
        """Make the leg over `stretches`, which begin at block `first`."""
        tiers = [tier for tier, stretch in stretches for _ in range(stretch.num_blocks)]
        prices = {tier: stretch.price for tier, stretch in stretches}
        return cls(first, first + len(tiers), is_race, tiers, prices, started_at)

    @property
    def next_tier(self) -> str:
        """The tier of the block that comes next."""
        num = min(len(self.arrivals), len(self.tiers) - 1)
        return self.tiers[-1 - num] if self.is_race else self.tiers[num]

    def live_price(self) -> LoadPrice:
        """Return what a block costs: as seen in this leg, else as expected."""
        price = self.prices[self.next_tier]
        if len(self.arrivals) < 2:
            return price
        seconds = (self.arrivals[-1][0] - self.arrivals[0][0]) / (len(self.arrivals) - 1)
        return LoadPrice(price.latency_seconds, seconds, price.is_seen)

    def silent_seconds(self, now: float) -> float:
        """How long nothing has come."""
        return now - (self.arrivals[-1][0] if self.arrivals else self.started_at)


@dataclass(eq=False)
class LoadJob:
    """One load. Below the line: written by the tier thread."""

    request: Request  # it is for this one as long as its `load` is this job
    addresses: list[bytes]  # of the whole chain up to `stop`
    first: int
    stop: int
    blocks: list[tuple[int, ...]]  # tokens of the blocks [first, stop)
    parent: Block | None  # the request's last full block when it let go of this
    pages: dict[int, int]  # by position: those that the tier thread may write; held by this job
    compute: ComputePrice | None  # None while unknown
    started_at: float
    lookup_seconds: float
    load_seconds: float
    wait_until: float  # its request computes nothing before this moment
    landing: Landing
    is_cancelled: bool = False  # nobody wants more of it
    is_finished: bool = False  # the tier thread is done with it, and the engine's knows
    is_awaited: bool = True  # as the engine's thread saw it last
    compute_stop: int | None = None  # its request computes up to this token at most in the next step
    is_counted: bool = False  # why it ended
    verdict: str | None = None  # why the engine's thread ended it
    look_at: float = 0.0  # while it is awaited: when to think again
    stuck_since: float | None = None  # its request waits for one block that is just being copied
    # ---
    leg: Leg | None = None
    is_over: bool = False
    reason: str | None = None

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self.request.block_tokens

    @property
    def deadline(self) -> float:
        """When the tier thread is done even if every call takes all its time."""
        return self.started_at + self.lookup_seconds + self.load_seconds

    @property
    def give_up_at(self) -> float:
        """When nobody waits for it any more, whatever it does."""
        return self.deadline + _GRACE_SECONDS

    @property
    def wakes_at(self) -> float | None:
        """When its request should be looked at again though nothing has happened."""
        if self.stuck_since is not None:
            return self.stuck_since + (0.0 if self.landing.claimed is None else STUCK_SECONDS)
        return self.look_at if self.is_awaited else None

    @property
    def recompute_seconds(self) -> float | None:
        """What computing all of it would take."""
        if self.compute is None:
            return None
        return self.compute.seconds((self.stop - self.first) * self.block_tokens, self.first * self.block_tokens)

    def compute_seconds(self, first: int, stop: int) -> list[float]:
        """What computing each of the blocks [first, stop) would take."""
        assert self.compute is not None
        size = self.block_tokens
        return [self.compute.seconds(size, index * size) for index in range(first, stop)]

    def lookup_patience(self) -> float:
        """How long its request waits for the lookup before it begins to compute."""
        seconds = self.recompute_seconds
        if seconds is None:
            return _UNKNOWN_SECONDS
        return max(_LOOKUP_SHARE * seconds, min(_WAIT_SHARE * seconds, _LOOKUP_SECONDS))

    def wait_for_load(self, now: float, expected_seconds: float, min_seconds: float) -> None:
        """Its request waits from now on: for a tenth of what computing would take, in all."""
        seconds = self.recompute_seconds
        if seconds is None:  # then for twice of what is expected
            self.wait_until = min(self.give_up_at, now + max(min_seconds, 2 * expected_seconds))
        else:
            spent = min(now - self.started_at, self.lookup_patience())
            self.wait_until = now + max(0.0, _WAIT_SHARE * seconds - spent)

    def extend_wait(self, position: int) -> None:
        """A block has come that need not be computed: so much the longer the others may take."""
        if self.compute is not None:
            self.wait_until += _SAVED_SHARE * self.compute_seconds(position, position + 1)[0]
