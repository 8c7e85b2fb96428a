"""Keeps an arena there: opens the one of an earlier life or makes a new one, in the background, and says why if none.

    start ──kept?──► ready        ──engine with another block size──► unlink ─┐
       └──────────► unlink, wait for engine.lock, allocate ◄──────────────────┘

The wait ends when nobody holds `engine.lock`, or when an engine attaches: it holds the lock exclusively, and unmaps
what it had mapped before it attaches. The file has exactly the size it was given, whatever the block size.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from pagoda_protocol.tier import ARENA_NAME, LOCK_NAME
from pagoda_sidecar.arena import engine_lock
from pagoda_sidecar.arena.file import ArenaError, ArenaFile, allocate, open_kept, unlink
from pagoda_sidecar.arena.layout import LayoutError

_log = logging.getLogger(__name__)

WAIT_SECONDS = 0.1


class ArenaKeeper:
    """See the head of this file. Lives in the control loop; `arena` is None exactly while `off_reason` says why."""

    def __init__(self, volume: Path, ram_bytes: int) -> None:
        self.arena: ArenaFile | None = None
        self.off_reason = "the arena is not opened yet"
        # Called when `arena` became there
        self.on_ready: Callable[[], None] = lambda: None
        # Called when making one failed, `off_reason` says why
        self.on_failed: Callable[[], None] = lambda: None
        # Called when another tenth was allocated, which `off_reason` and `allocated_ratio` say
        self.on_progress: Callable[[], None] = lambda: None
        self.allocated_ratio = 0.0
        self._path = volume / ARENA_NAME
        self._lock_path = volume / LOCK_NAME
        self._ram_bytes = ram_bytes
        self._may_allocate = asyncio.Event()
        self._making: asyncio.Task[None] | None = None
        self._is_waiting = False
        self._is_closed = False

    @property
    def is_configured(self) -> bool:
        """Whether there should be a RAM tier."""
        return self._ram_bytes > 0

    @property
    def is_decided(self) -> bool:
        """Whether it is known if there is an arena; a wait for an engine to let go of one may take for ever."""
        return self._making is None or self._is_waiting

    def is_lock_free(self) -> bool:
        """Whether no engine can be touching the arena."""
        return engine_lock.is_free(self._lock_path)

    async def start(self) -> None:
        """Open what is there, or begin to make a new arena."""
        if not self.is_configured:
            self.off_reason = "the RAM tier is switched off (ram size 0)"
            await asyncio.to_thread(unlink, self._path)
            return
        try:
            arena = await asyncio.to_thread(open_kept, self._path, self._ram_bytes)
        except ArenaError as error:
            _log.info("no arena is kept: %s", error)
            self._make()
            return
        _log.info("arena kept boot=%d slots=%d", arena.boot_count, arena.geometry.num_slots)
        self._ready(arena)

    def prepare(self, payload_bytes: int) -> bool:
        """An engine with the lock attaches: fit the arena to its blocks; False while `off_reason` says why not.

        The caller has let go of the arena if `fits` was False before.
        """
        self._may_allocate.set()
        if not self.is_configured:
            return False
        if self.arena is None:
            if self._making is None:
                self._make()  # the last try failed; there may be room now
            return False
        if self.arena.geometry.is_fixed and self.arena.geometry.payload_bytes != payload_bytes:
            _log.info("arena made anew: blocks have %d bytes now", payload_bytes)
            self.arena.close()
            self.arena = None
            self._make()
            return False
        if not self.arena.geometry.is_fixed:
            try:
                self.arena.fix_geometry(payload_bytes)
            except LayoutError as error:
                self.off_reason = f"the RAM tier is too small: {error}"
                return False
        self.off_reason = ""
        return True

    def discard(self) -> None:
        """Give the arena up: somebody may touch it whom nobody can stop. The next engine gets a new one."""
        if self.arena is not None:
            _log.warning("arena made anew: a read from disk did not end")
            self.arena.close()
            self.arena = None
            self._make()

    def fits(self, payload_bytes: int) -> bool:
        """Whether an engine with such blocks can use the arena as it is."""
        return self.arena is None or self.arena.geometry.payload_bytes in (0, payload_bytes)

    async def close(self) -> None:
        """Stop allocating and unmap; the file stays for the next life."""
        self._is_closed = True
        if self._making is not None:
            self._may_allocate.set()
            await self._making
        if self.arena is not None:
            self.arena.close()
            self.arena = None

    def _make(self) -> None:
        self.off_reason = "the arena is being allocated"
        self.allocated_ratio = 0.0
        self._making = asyncio.create_task(self._allocate())

    async def _allocate(self) -> None:
        loop = asyncio.get_running_loop()

        def report(done_bytes: int) -> None:
            loop.call_soon_threadsafe(self._progress, done_bytes)

        try:
            await asyncio.to_thread(unlink, self._path)
            while not self._may_allocate.is_set() and not self.is_lock_free():
                self._is_waiting = True
                self.off_reason = "waiting for the engine to let go of the former arena"
                await asyncio.sleep(WAIT_SECONDS)
            self._is_waiting = False
            arena = await asyncio.to_thread(allocate, self._path, self._ram_bytes, report, lambda: self._is_closed)
        except (ArenaError, OSError) as error:
            self.off_reason, self.allocated_ratio = str(error), 0.0
            _log.warning("RAM tier off: %s", error)
            self.on_failed()
            return
        finally:
            self._making = None
        _log.info("arena allocated bytes=%d", self._ram_bytes)
        self._ready(arena)

    def _progress(self, done_bytes: int) -> None:
        former, self.allocated_ratio = self.allocated_ratio, done_bytes / self._ram_bytes
        self.off_reason = f"the arena is being allocated ({100 * done_bytes // self._ram_bytes} %)"
        if int(10 * former) < int(10 * self.allocated_ratio) and self.allocated_ratio < 1:
            _log.info("arena allocated percent=%d bytes=%d", 100 * done_bytes // self._ram_bytes, done_bytes)
            self.on_progress()

    def _ready(self, arena: ArenaFile) -> None:
        self.arena = arena
        self.allocated_ratio = 1.0
        self.off_reason = ""
        self.on_ready()
