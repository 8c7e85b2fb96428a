"""What is put between the worker and the rest, in the worker's own process, before it starts.

kill points     before, in the middle of and after what changes the arena
flips           bits of sealed slots, done on the control loop, where nobody can be writing the slot meanwhile
checks          `check_integrity` of the RAM tier at each look
disk            see `disk_hooks`
times           leases, retries and looks short, so that minutes hold what days would
"""

import faulthandler
import functools
import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagoda_sidecar import worker
from pagoda_sidecar.arena import tier as tier_module
from pagoda_sidecar.arena.headers import HeaderTable
from pagoda_sidecar.arena.layout import ENTRY_BYTES, ENTRY_WORDS, RECORD_OFFSET
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.pool import PoolSettings
from pagoda_sidecar.sidecar import Sidecar
from tests.support.faults import disk_hooks
from tests.support.faults.control import Control
from tests.support.faults.mutations import HEADER_FIELDS

LEASE_SECONDS = 1.0
LOOK_SECONDS = 0.05
POOL_SETTINGS = {
    "connect_seconds": 0.3, "operation_seconds": 0.2, "retry_seconds": 0.1, "max_retry_seconds": 0.5,
}  # fmt: skip
# Steps of the worker's life at which it may be killed: (class, method)
KILL_POINTS: dict[str, tuple[type, str]] = {
    "invalidate": (HeaderTable, "invalidate"),
    "seal": (HeaderTable, "seal"),
    "free": (HeaderTable, "free"),
    "reserve": (RamTier, "reserve"),
    "grant": (RamTier, "grant"),
    "commit": (RamTier, "commit"),
    "land": (RamTier, "land"),
    "settle": (RamTier, "settle"),
    "lapse": (RamTier, "lapse"),
    "attached": (RamTier, "attached"),
}
TORN_POINTS = ("invalidate", "seal")


def install(folder: str) -> None:
    """Hook everything; called once, before the worker's `main`."""
    control = Control(Path(folder))
    faulthandler.register(signal.SIGUSR1)  # says where every thread is, into the log
    _shorten_times()
    for point, (owner, name) in KILL_POINTS.items():
        setattr(owner, name, _killing(control, point, getattr(owner, name)))
    _look_at_each_tick(control)
    disk_hooks.install(control)


def die(control: Control, name: str) -> None:
    """End the process as the kernel would."""
    control.done(name)
    os.kill(os.getpid(), signal.SIGKILL)


def _shorten_times() -> None:
    tier_module.LEASE_SECONDS = LEASE_SECONDS
    worker.LOOK_AGAIN_SECONDS = LOOK_SECONDS
    for settings in _default_settings():
        for name, seconds in POOL_SETTINGS.items():
            object.__setattr__(settings, name, seconds)


def _default_settings() -> list[PoolSettings]:
    """The frozen settings that were made when signatures were read: whoever makes a pool gets one of them."""
    return [found for found in gc.get_objects() if isinstance(found, PoolSettings)]


def _killing(control: Control, point: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def hooked(*arguments: Any, **named: Any) -> Any:
        if control.kills(point, "before"):
            die(control, f"kill.{point}.before")
        if point in TORN_POINTS and control.kills(point, "torn"):
            _tear(point, *arguments)
            die(control, f"kill.{point}.torn")
        result = original(*arguments, **named)
        if control.kills(point, "after"):
            die(control, f"kill.{point}.after")
        return result

    return hooked


def _tear(point: str, table: Any, slot: int, *arguments: Any) -> None:
    """Do the first half of a write to the header table."""
    if point == "seal":
        start = slot * ENTRY_BYTES + RECORD_OFFSET
        half = arguments[0][: len(arguments[0]) // 2]
        table._bytes[start : start + len(half)] = half
    else:
        table._words[slot * ENTRY_WORDS + 1] = arguments[0]


def _look_at_each_tick(control: Control) -> None:
    original = Sidecar.update_gauges

    def hooked(self: Sidecar) -> None:
        original(self)
        if self.tier is None:
            return
        try:
            self.tier.check_integrity()
        except AssertionError as error:
            if not control.has_violation:
                logging.getLogger(__name__).exception("integrity: %s", _slots(self.tier))
            control.violation(f"check_integrity: {error!r}")
        flipped: set[int] = set()
        for field, bit, where in control.flips():
            _flip(control, self.tier, (field, bit, where), flipped)

    Sidecar.update_gauges = hooked  # type: ignore[method-assign]


def _slots(tier: RamTier) -> str:
    """Which slots are lost or taken twice."""
    index = tier.index
    holders = [*index, *index._nameless]
    taken = [*(block.slot for block in holders), *index._free]
    twice = {slot for slot in taken if taken.count(slot) > 1}
    lost = set(range(index.num_slots)) - set(taken)
    return f"lost {lost}, twice {[block for block in holders if block.slot in twice]}, free {twice & set(index._free)}"


def _flip(control: Control, tier: RamTier, flip: tuple[str, int, float], flipped: set[int]) -> None:
    """Flip one bit of a sealed slot, of none twice: the second flip of a bit would mend it."""
    field, bit, where = flip
    blocks: list[Block] = [block for block in tier.index if block.is_sealed]
    block = blocks[int(where * len(blocks))] if blocks else None
    if block is None or block.slot in flipped:
        return
    flipped.add(block.slot)
    if field == "payload":
        target = tier.arena.payload(block.slot)
        offset, size = 0, len(target)
    else:
        target = tier._headers._bytes
        offset, size = HEADER_FIELDS[field]
        offset += block.slot * ENTRY_BYTES + RECORD_OFFSET
    bit %= size * 8
    target[offset + bit // 8] ^= 1 << bit % 8
    control.done(f"arena.flip.{field}")
