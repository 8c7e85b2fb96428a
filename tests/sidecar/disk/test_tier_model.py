"""Random lives of a disk tier with accidents, against an oracle that knows what each address must hold.

The oracle is `support.payload`: whatever comes is compared with it. Beyond that: the cap holds after each step, the
index agrees with itself, nothing is found damaged that was not damaged, and a restart finds what was there.
"""

import asyncio
import contextlib
import errno
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagoda_sidecar.disk.chains import RAM, Chains
from pagoda_sidecar.disk.layout import sequence_of
from pagoda_sidecar.disk.tier import DiskTier
from tests.sidecar.disk.machine import Machine, SwitchedOff, at_change, failing
from tests.sidecar.disk.support import (
    NAMESPACE,
    PAYLOAD_BYTES,
    QUICK,
    chain,
    fetch,
    folder_bytes,
    record,
    records,
    segment_paths,
    until,
)

CAP = 450_000
_Result = TypeVar("_Result")

seeds = st.integers(0, 12)
lengths = st.integers(1, 7)


class DiskLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.machine = Machine(self.patch)
        self.folder = Path(tempfile.mkdtemp(prefix="pagoda-disk-", dir="/dev/shm"))
        self.runner = asyncio.Runner()
        self.damage: list[str] = []
        self.tier: DiskTier | None = None
        self.namespace = NAMESPACE
        self.has_shared = False

    def run(self, work: Awaitable[_Result]) -> _Result:
        async def go() -> _Result:
            return await work

        return self.runner.run(go())

    @initialize()
    def begin(self) -> None:
        self.run(self._begin())

    async def _begin(self) -> None:
        self.tier = DiskTier(self.folder, CAP, Chains(), self.damage.append, QUICK)
        self.tier.start()
        self.tier.set_namespace(self.namespace, PAYLOAD_BYTES)
        await until(self.tier.enabled)

    @property
    def live(self) -> DiskTier:
        assert self.tier is not None
        return self.tier

    @rule(seed=seeds, length=lengths, first=st.integers(0, 3), tag=st.integers(1, 2))
    def store(self, seed: int, length: int, first: int, tag: int) -> None:
        """A chain, possibly without its front."""
        new = records(chain(length + first, seed), tag, self.namespace)[first:]
        last = new[-1].header.address
        was_there = self.live.has(last)  # then it may have gone to make room for the others
        stored = self.run(self.live.store_all(new))
        if self.live.enabled() and all(stored) and not was_there:
            assert self.live.has(last) or tag == 2  # its share may have been too small

    @rule(seed=seeds, length=lengths)
    def read(self, seed: int, length: int) -> None:
        known = [self.live.has(address) for address in chain(length, seed)]
        came = self.run(fetch(self.live, chain(length, seed)))
        if self.live.enabled():
            assert came == known

    @rule(seed=seeds, length=lengths)
    def touch(self, seed: int, length: int) -> None:
        self.live.touch(chain(length, seed)[-1])

    @rule(seed=seeds, index=st.integers(0, 4), is_there=st.booleans())
    def in_ram(self, seed: int, index: int, is_there: bool) -> None:
        """RAM holds a block, or no longer: chains are whole over both."""
        header = record(chain(5, seed), index).header
        if is_there:
            self.live.chains.add(RAM, header.address, header.parent, header.index)
        else:
            self.live.chains.remove(RAM, header.address)

    @rule(share=st.sampled_from([0.05, 0.3, 1.0]))
    def share(self, share: float) -> None:
        self.live.set_shares({2: share})
        self.has_shared = True

    @rule(number=st.integers(0, 8), code=st.sampled_from([errno.EIO, errno.ENOSPC, errno.EROFS]))
    def plan_failure(self, number: int, code: int) -> None:
        self.machine.accident = at_change(self.machine, number, failing(code))

    @rule()
    def mend(self) -> None:
        self.machine.accident = lambda name, arguments: None
        self.run(until(self.live.enabled))

    @rule()
    def restart(self) -> None:
        self.mend()
        held = {entry.link.address for entry in self.live.index}
        self.run(self.live.close())
        self.run(self._begin())
        found = {entry.link.address for entry in self.live.index}
        assert found >= held
        assert found == held or self.has_shared, "what a share took from the index alone is found again without it"

    @rule(number=st.integers(0, 9))
    def lose_a_segment(self, number: int) -> None:
        """Somebody removes a file."""
        self.mend()
        paths = segment_paths(self.folder)
        if number < len(paths):
            paths[number].unlink()
            self.live._wake.set()
            sequence = sequence_of(paths[number].name)
            self.run(until(lambda: sequence not in self.live.index.segments))
            self.mend()

    @rule()
    def lose_everything(self) -> None:
        """Somebody makes the folder anew."""
        self.mend()
        epoch = self.live.epoch
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.live._wake.set()
        self.run(until(lambda: self.live.epoch != epoch and self.live.enabled()))
        assert len(self.live.index) == 0

    @rule(seed=seeds, number=st.integers(0, 12), share=st.sampled_from([0.0, 0.4, 0.9]))
    def kill(self, seed: int, number: int, share: float) -> None:
        """kill -9 in the middle of something, or of nothing."""
        self.mend()

        def die(name: str, arguments: tuple[object, ...]) -> None:
            if name == "pwritev":
                descriptor, buffers, offset = arguments
                size = sum(map(len, buffers))  # type: ignore[call-overload]
                self.machine.switch_off((descriptor, buffers, offset), int(size * share))  # type: ignore[arg-type]
            self.machine.switch_off()

        self.machine.accident = at_change(self.machine, number, die)
        with contextlib.suppress(SwitchedOff):
            for batch in range(4):
                self.run(self.live.store_all(records(chain(3, 20 + seed + batch), 1, self.namespace)))
        held = {entry.link.address for entry in self.live.index}
        self.run(self._end())
        assert folder_bytes(self.folder) <= CAP
        self.run(self._begin())
        assert {entry.link.address for entry in self.live.index} >= held

    async def _end(self) -> None:
        tier = self.live
        assert tier._keeping is not None
        tier._keeping.cancel()
        with contextlib.suppress(SwitchedOff, asyncio.CancelledError):
            await tier._keeping
        assert await tier._threads.idle(5.0)
        tier._threads.close()
        self.machine.restart()

    @rule()
    def other_namespace(self) -> None:
        self.mend()
        self.namespace = b"o" * 16 if self.namespace == NAMESPACE else NAMESPACE
        self.live.set_namespace(self.namespace, PAYLOAD_BYTES)
        self.run(until(self.live.enabled))

    @precondition(lambda self: self.tier is not None)
    @invariant()
    def holds(self) -> None:
        assert folder_bytes(self.folder) <= CAP
        self.run(until(lambda: not self.live._writing.locked()))
        self.live.check_integrity()
        assert self.damage == []

    def teardown(self) -> None:
        self.machine.accident = lambda name, arguments: None
        if self.tier is not None:
            self.run(self.live.close())
        self.runner.close()
        self.patch.undo()
        shutil.rmtree(self.folder)


TestDiskLife = DiskLife.TestCase
TestDiskLife.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
