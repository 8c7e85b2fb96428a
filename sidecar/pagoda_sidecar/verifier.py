"""Hashes payloads in the RAM tier's threads, and drops what is damaged."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pagoda_runtime.logs import fields
from pagoda_sidecar.arena.slots.block import Block
from pagoda_sidecar.arena.tier import RamTier
from pagoda_sidecar.counters import Counters

_log = logging.getLogger(__name__)

NUM_THREADS = 2


class Verifier:
    """One per sidecar. Its threads read the arena and nothing else."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self._threads = ThreadPoolExecutor(NUM_THREADS, "ram-tier")

    async def check(self, tier: RamTier, blocks: Sequence[Block]) -> list[bool]:
        """Hash the payloads of `blocks`, say which are sound, drop the others and count them.

        A block that lost its name since somebody doubted it is not sound: its slot may be another's by now.
        """
        named = [block for block in blocks if block.is_named]
        reasons = dict(zip(named, await self._hash(tier, named), strict=True))
        for block, reason in reasons.items():
            if reason is None:
                block.is_verified = True
            elif block.is_named:
                tier.drop(block)
                self.counters.integrity_failures.add(1, tier="ram", reason=reason)
                _log.warning("damaged record dropped %s", fields(tier="ram", reason=reason, slot=block.slot))
        return [reasons.get(block, "gone") is None for block in blocks]

    async def _hash(self, tier: RamTier, blocks: Sequence[Block]) -> list[str | None]:
        """Say what is wrong with each block; their slots are held meanwhile."""
        for block in blocks:
            tier.index.reference(block)
        work = asyncio.get_running_loop().run_in_executor(self._threads, _verify_all, tier, blocks)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # the thread must be out of the arena before anybody lets go of it
            raise
        finally:
            for block in blocks:
                tier.index.unreference(block)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _verify_all(tier: RamTier, blocks: Sequence[Block]) -> list[str | None]:
    return [tier.verify(block) for block in blocks]
