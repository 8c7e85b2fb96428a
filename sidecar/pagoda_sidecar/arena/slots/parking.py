"""Which runs are kept before others, least recently parked first, and how many blocks that makes."""

from collections import OrderedDict

from pagoda_sidecar.arena.slots.run import ChainRun


class Parking:
    """See the head of this file."""

    def __init__(self) -> None:
        self.num_blocks = 0
        self._runs: OrderedDict[ChainRun, None] = OrderedDict()

    @property
    def first(self) -> ChainRun:
        """The run that loses its mark first; there must be one."""
        return next(iter(self._runs))

    def add(self, run: ChainRun) -> None:
        """Mark `run`, as the most recently parked one."""
        if not run.is_parked:
            run.is_parked = True
            self.num_blocks += run.num_blocks
        self._runs[run] = None
        self._runs.move_to_end(run)

    def remove(self, run: ChainRun) -> bool:
        """Take the mark away; return whether there was one."""
        if not run.is_parked:
            return False
        run.is_parked = False
        self.num_blocks -= run.num_blocks
        del self._runs[run]
        return True

    def split(self, run: ChainRun, end: ChainRun) -> None:
        """`end`, until now a part of `run`, is a run of its own, parked or not as before."""
        if run.is_parked:
            end.is_parked = True
            self._runs[end] = None

    def resize(self, run: ChainRun, change: int) -> None:
        """Follow the growth of a run, marked or not; a marked one that has become empty is forgotten."""
        if run.is_parked:
            self.num_blocks += change
            if not run.num_blocks:
                del self._runs[run]

    def check_integrity(self, runs: set[ChainRun]) -> None:
        """Assert that marks, list and count agree with all the `runs` there are."""
        assert set(self._runs) == {run for run in runs if run.is_parked}, "a mark and the list of marks disagree"
        assert self.num_blocks == sum(run.num_blocks for run in self._runs), "parked blocks are miscounted"
