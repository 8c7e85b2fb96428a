"""The engine (signatures first; the body follows)."""

import time
from collections.abc import Callable, Sequence

from pagoda_engine.core.request import NewRequest, TokenSink
from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.core.stats import EngineStats
from pagoda_engine.core.tiers import DigestRow, TierClient
from pagoda_engine.model.interface import ModelRunner
from pagoda_runtime.metrics import Metrics


class Engine:
    """Serves requests with one model. `submit`, `abort`, `report_digests` and `stats` may be called from any thread."""

    def __init__(
        self,
        runner: ModelRunner,
        settings: EngineSettings,
        metrics: Metrics,
        tiers: TierClient | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        raise NotImplementedError

    @property
    def max_request_tokens(self) -> int:
        """Most tokens (prompt and `max_tokens` together) that `submit` accepts."""
        raise NotImplementedError

    @property
    def is_healthy(self) -> bool:
        """False once the loop has broken: the process should be restarted."""
        raise NotImplementedError

    @property
    def is_idle(self) -> bool:
        """No request lives, nothing is in flight below."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the engine's thread."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the thread; requests that live end with finish "abort"."""
        raise NotImplementedError

    def submit(self, request: NewRequest, sink: TokenSink) -> None:
        """Queue a request; `sink` is called in the engine's thread.

        Raises:
            RequestRejected: no state of this engine could serve it.
        """
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        """End a request in any state; unknown ids are fine."""
        raise NotImplementedError

    def report_digests(self, rows: Sequence[DigestRow]) -> None:
        """Queue digest rows for the sidecar."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Return the counts at the end of the last step."""
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Assert every invariant of the blocks."""
        raise NotImplementedError
