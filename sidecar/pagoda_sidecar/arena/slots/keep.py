"""Runs that are kept before others, for as long as there are not too many of them.

There are two: the window, of runs that grew lately, so that no chain in progress loses its end to another one that is;
and the parked ones, whose sessions are idle, preempted, or handed over by another pod and not yet used here. A run is
in one of them at most.
"""

from collections import OrderedDict

from pagoda_sidecar.arena.slots.run import ChainRun


class Keep:
    """One of them, oldest first. Those of a higher `level` are evicted later."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.num_blocks = 0
        self._runs: OrderedDict[ChainRun, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def first(self) -> ChainRun:
        """The run that leaves first; there must be one."""
        return next(iter(self._runs))

    def add(self, run: ChainRun) -> None:
        """Keep `run`, as the most recent one."""
        if run.keeper is not self:
            if run.keeper is not None:
                run.keeper.remove(run)
            run.keeper = self
            self.num_blocks += run.num_blocks
        self._runs[run] = None
        self._runs.move_to_end(run)

    def remove(self, run: ChainRun) -> bool:
        """Keep `run` no longer; return whether it was kept here."""
        if run.keeper is not self:
            return False
        run.keeper = None
        self.num_blocks -= run.num_blocks
        del self._runs[run]
        return True

    def split(self, end: ChainRun) -> None:
        """`end`, until now a part of a run that is kept here, is a run of its own."""
        end.keeper = self
        self._runs[end] = None

    def resize(self, run: ChainRun, change: int) -> None:
        """Follow the growth of a run that is kept here; one that has become empty is forgotten."""
        self.num_blocks += change
        if not run.num_blocks:
            del self._runs[run]

    def check_integrity(self, runs: set[ChainRun]) -> None:
        """Assert that runs, list and count agree, given all the `runs` there are."""
        assert set(self._runs) == {run for run in runs if run.keeper is self}, "a run and the list disagree"
        assert self.num_blocks == sum(run.num_blocks for run in self._runs), "kept blocks are miscounted"
