"""Load or compute: what to do with the run of blocks that lies below. Pure: prices in, plans out.

    ├── serial: waited for, front first ──┤├── race: the engine computes ──►    ◄── loads from the end ──┤├─ computed ─┤

Rules:
- A part is waited for only if that costs a tenth of computing it at most. So waiting never costs more than 10 %,
  whatever the tier does in the end.
- All else is raced: whoever is faster does more of it, and neither the request nor the tier waits for the other.
- A tier that was judged slow must be clearly faster than the line to be waited for again, so that noise flips nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SERIAL_SHARE = 0.1  # of the recompute time that waiting may cost
RETURN_SHARE = SERIAL_SHARE / 1.25  # and for a tier that was too slow before
PROBE_SHARE = 2.5 * SERIAL_SHARE  # now and then: a race slows the load it measures, and waiting has a budget anyway
_HALVING = 0.5  # of the way to the predicted meeting point that one step computes at most


@dataclass(frozen=True)
class LoadPrice:
    """What loading from one tier costs: the first block comes after the latency, each one takes its time."""

    latency_seconds: float
    block_seconds: float
    is_seen: bool = True  # False: the latency is how long nothing came when it was last tried

    def seconds(self, num_blocks: int) -> float:
        """Return the time until `num_blocks` have come."""
        return self.latency_seconds + num_blocks * self.block_seconds


@dataclass(frozen=True)
class Stretch:
    """Blocks that lie in one tier, one after the other."""

    num_blocks: int
    price: LoadPrice
    serial_share: float = SERIAL_SHARE


@dataclass(frozen=True)
class Plan:
    """Wait for the first `num_serial` blocks, about `serial_seconds`. What to race for is decided when they are there
    (`race_span`): the prices may be others by then."""

    num_serial: int
    serial_seconds: float


@dataclass(frozen=True)
class Meeting:
    """Where computing from the front and loading from the end meet: blocks before `position` are computed."""

    position: int
    seconds: float


def weigh(stretches: Sequence[Stretch], compute_seconds: Sequence[float]) -> Plan:
    """Return what to wait for of blocks that follow one another; computing block i takes `compute_seconds[i]`."""
    num_serial, serial_seconds = 0, 0.0
    for stretch in stretches:
        seconds = stretch.price.seconds(stretch.num_blocks)
        budget = sum(compute_seconds[num_serial : num_serial + stretch.num_blocks])
        if seconds > stretch.serial_share * budget:
            break
        num_serial += stretch.num_blocks
        serial_seconds += seconds
    return Plan(num_serial, serial_seconds)


def race_span(stretches: Sequence[Stretch], compute_seconds: Sequence[float]) -> tuple[int, int]:
    """Return the blocks to race for, none: both equal.

    They end with that stretch after which the whole would be done first; the lowest is what the race can be expected to
    bring, with a margin.
    """
    first = stop = num_blocks = 0
    shortest = math.fsum(compute_seconds[: sum(stretch.num_blocks for stretch in stretches)])
    for number, stretch in enumerate(stretches):
        num_blocks += stretch.num_blocks
        if not stretch.num_blocks:
            continue
        met = meet(stretches[: number + 1], compute_seconds[:num_blocks])
        rest = math.fsum(compute_seconds[num_blocks : sum(one.num_blocks for one in stretches)])
        if met.position < num_blocks and met.seconds + rest < shortest:
            shortest, stop = met.seconds + rest, num_blocks
            margin = (num_blocks - met.position) + 8  # as much again: the price may be wrong
            first = max(0, met.position - margin)
    return first, stop


def meet(stretches: Sequence[Stretch], compute_seconds: Sequence[float]) -> Meeting:
    """Let both go on until no block is left: each takes the next one if it would have it before the other."""
    front, computed, loaded = 0, 0.0, 0.0
    back = len(compute_seconds)
    for stretch in reversed(stretches):
        loaded = max(loaded, stretch.price.latency_seconds)
        for _ in range(stretch.num_blocks):
            while front < back and computed + compute_seconds[front] <= loaded + stretch.price.block_seconds:
                computed += compute_seconds[front]
                front += 1
            if front >= back:
                return Meeting(front, computed)
            loaded += stretch.price.block_seconds
            back -= 1
    return Meeting(front, max(computed, loaded))


@dataclass(frozen=True)
class RaceState:
    """A race as one step sees it."""

    num_blocks: int  # between what is computed and what has landed
    compute_block_seconds: float
    load: LoadPrice  # of the tier the next blocks come from
    elapsed_seconds: float  # since the load was asked for, or since the last block landed
    has_landed: bool  # whether anything has


def expected_block_seconds(race: RaceState) -> float:
    """Return what the next blocks will take to come: as is known, or longer if the next one is late by now."""
    due = race.load.block_seconds + (0.0 if race.has_landed else race.load.latency_seconds)
    return (
        race.load.block_seconds if race.elapsed_seconds <= due else max(race.load.block_seconds, race.elapsed_seconds)
    )


def expected_computed(race: RaceState) -> float:
    """Return how many of the blocks between will be computed when the two meet."""
    pace = max(expected_block_seconds(race), 1e-9)
    wait = 0.0 if race.has_landed else max(0.0, race.load.latency_seconds - race.elapsed_seconds)
    seconds = (race.num_blocks + wait / pace) / (1 / race.compute_block_seconds + 1 / pace)
    return min(float(race.num_blocks), seconds / race.compute_block_seconds)


def chunk_blocks(race: RaceState, min_blocks: int) -> int:
    """Return how many blocks to compute in the next step: half of the way, so that a wrong guess costs little.

    0: the load will have brought all that is left before the shortest step would be over.
    """
    wait = 0.0 if race.has_landed else max(0.0, race.load.latency_seconds - race.elapsed_seconds)
    left_seconds = wait + race.num_blocks * expected_block_seconds(race)
    is_known = race.has_landed or race.load.is_seen
    if is_known and left_seconds < min(min_blocks, race.num_blocks) * race.compute_block_seconds:
        return 0
    wanted = math.ceil(expected_computed(race) * _HALVING)
    return min(race.num_blocks, max(min_blocks, wanted))


def is_useless(race: RaceState) -> bool:
    """Whether not even one more block is expected to come before all is computed."""
    return race.num_blocks - expected_computed(race) < 1
