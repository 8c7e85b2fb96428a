"""The way out: turn new requests away, let streams end, and hand blocks over to the pool before and after.

    close gate ──► hand over (what is idle now) ──────────────┐
              └──► wait for streams, drain_seconds at most ───┴──► hand over (what they left) ──► drained

Rules: any number of callers (POST /drain, a signal) share one drain; a caller that leaves does not end it.
"""

import asyncio
import logging

from pagoda_engine.serving.gate import Gate
from pagoda_engine.serving.service import Service

_log = logging.getLogger(__name__)


class Drainer:
    """Drains one gate, once."""

    def __init__(self, gate: Gate[Service], drain_seconds: float) -> None:
        self._gate = gate
        self._drain_seconds = drain_seconds
        self._task: asyncio.Task[bool] | None = None

    async def drain(self) -> bool:
        """Close the gate and wait; return whether everything inside ended in time."""
        if self._task is None:
            self._gate.close()
            self._task = asyncio.create_task(self._run())
        return await asyncio.shield(self._task)

    async def _run(self) -> bool:
        _log.info("draining num_running=%d seconds=%g", self._gate.num_inside, self._drain_seconds)
        first = asyncio.create_task(self._hand_over())
        is_empty = await self._gate.wait_empty(self._drain_seconds)
        await first
        await self._hand_over()
        _log.info("drained num_left=%d", self._gate.num_inside)
        return is_empty

    async def _hand_over(self) -> None:
        service = self._gate.service
        if service is not None and (num_blocks := await asyncio.to_thread(service.hand_over)):
            _log.info("handed over to the pool num_blocks=%d", num_blocks)
