"""What the sidecar is told: digest rows, device residency, use and load, in batches and off the engine's thread.

Rules: `_told` is what the sidecar may believe (also what a failed report may have told it); differences bring it to
`_resident`. After an attach it knows nothing, after a failure nobody knows what it knows: then all that is resident is
told again, and what is not but may have been told is taken back.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.tiers import DigestRow, LoadReport, TierClient
from pagoda_engine.core.workers import Outage

_MAX_BATCH = 8192  # addresses per call: 256 KiB
_MAX_TOUCHED = 1024
_MAX_PARKED = 1024
_TIMEOUT_SECONDS = 1.0


@dataclass
class _News:
    rows: list[DigestRow] = field(default_factory=list)
    added: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    touched: list[bytes] = field(default_factory=list)
    parked: list[bytes] = field(default_factory=list)


class Reporter:
    """Collects news from any thread and sends it from its own (or from whoever calls `flush`)."""

    def __init__(self, tiers: TierClient, settings: EngineSettings, load: Callable[[], LoadReport]) -> None:
        self.on_look: Callable[[bool], None] = lambda is_attached: None  # told at each of the thread's looks
        self._tiers = tiers
        self._settings = settings
        self._load = load
        self._changed = threading.Condition()
        self._resident: set[bytes] = set()
        self._told: set[bytes] = set()
        self._dirty: dict[bytes, None] = {}
        self._recent_rows: OrderedDict[bytes, DigestRow] = OrderedDict()
        self._new_rows: dict[bytes, DigestRow] = {}
        self._touched: list[bytes] = []  # each use counts, also two between two reports
        self._parked: dict[bytes, None] = {}
        self._is_stale = True  # all must be told again
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._outage = Outage("a report")

    def added(self, address: bytes) -> None:
        """The device holds a block."""
        with self._changed:
            self._resident.add(address)
            self._note_dirty(address)

    def removed(self, address: bytes) -> None:
        """The device holds it no longer."""
        with self._changed:
            self._resident.discard(address)
            self._note_dirty(address)

    def touched(self, address: bytes) -> None:
        """A request hit up to this block, or ended there."""
        with self._changed:
            if len(self._touched) < _MAX_TOUCHED:
                self._touched.append(address)
            self._changed.notify()

    def parked(self, address: bytes) -> None:
        """A session that ends in this block was parked, or a request preempted there: it will come back."""
        with self._changed:
            if len(self._parked) < _MAX_PARKED:
                self._parked[address] = None
            self._changed.notify()

    def digests(self, rows: Sequence[DigestRow]) -> None:
        """Remember and send digest rows."""
        with self._changed:
            for row in rows:
                self._recent_rows[row.digest] = self._new_rows[row.digest] = row
                self._recent_rows.move_to_end(row.digest)
            while len(self._recent_rows) > self._settings.max_digest_rows:
                digest, _ = self._recent_rows.popitem(last=False)
                self._new_rows.pop(digest, None)
            self._changed.notify()

    def attached(self) -> None:
        """A sidecar has attached that knows nothing."""
        with self._changed:
            self._is_stale = True
            self._changed.notify()

    def flush(self) -> bool:
        """Send what there is, with the load; return whether the sidecar took it."""
        with self._changed:
            news = self._take_news()
        batches = range(0, max(1, len(news.added), len(news.removed)), _MAX_BATCH)
        try:
            for start in batches:
                piece = slice(start, start + _MAX_BATCH)
                rest = news if start == batches[-1] else _News()
                self._tiers.report(
                    rest.rows,
                    news.added[piece],
                    news.removed[piece],
                    rest.touched,
                    self._load(),
                    _TIMEOUT_SECONDS,
                    rest.parked,
                )
        except Exception as error:  # noqa: BLE001 - whatever the sidecar does, it is never more than a later report
            self._outage.failed(error)
            with self._changed:
                self._is_stale = True
                self._parked = dict.fromkeys([*news.parked, *self._parked][:_MAX_PARKED])
            return False
        self._outage.worked()
        with self._changed:
            self._told.difference_update(news.removed)
        return True

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="tier-report", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread after a last report; give up waiting after `timeout_seconds`."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self._thread = None

    def _note_dirty(self, address: bytes) -> None:
        self._dirty[address] = None
        self._changed.notify()

    def _has_news(self) -> bool:
        return bool(self._dirty or self._new_rows or self._touched or self._parked or self._is_stale)

    def _take_news(self) -> _News:
        if self._is_stale:
            added, removed = list(self._resident), list(self._told - self._resident)
            rows = list(self._recent_rows.values())
        else:
            added = [address for address in self._dirty if address in self._resident and address not in self._told]
            removed = [address for address in self._dirty if address not in self._resident and address in self._told]
            rows = list(self._new_rows.values())
        news = _News(rows, added, removed, list(self._touched), list(self._parked))
        self._told.update(added)
        self._dirty.clear()
        self._new_rows.clear()
        self._touched.clear()
        self._parked.clear()
        self._is_stale = False
        return news

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._is_stopping and not (self._tiers.attached and self._has_news()):
                    self._changed.wait(self._settings.load_report_seconds)
                is_last = self._is_stopping
            is_attached = self._tiers.attached
            self.on_look(is_attached)
            is_taken = is_attached and self.flush()
            if is_last:
                return
            pause = self._settings.report_seconds if is_taken else self._settings.load_report_seconds
            with self._changed:  # what comes in the meantime goes with the next report
                self._changed.wait_for(lambda: self._is_stopping, pause)
