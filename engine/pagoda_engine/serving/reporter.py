"""After a request: which digests cover which blocks, worked out in a thread of its own and handed to the engine.

Rules: never on the event loop, never on the engine's thread, never an error to anybody; what waits is bounded, and when
the thread cannot keep up the newest reports are dropped (a digest that matters comes again with the next turn).
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pagoda_engine.core.tiers import DigestRow
from pagoda_engine.serving.auth import Chain
from pagoda_engine.serving.coverage import Claim
from pagoda_engine.serving.generation import Generation
from pagoda_engine.serving.prepare import Prepared
from pagoda_engine.serving.service import Service

_log = logging.getLogger(__name__)

MAX_WAITING = 64


@dataclass(frozen=True)
class Reported:
    """A request whose digests are to be reported: those of its first prompt, which `chain` belongs to."""

    scope: str
    chain: Chain
    prepared: Prepared


@dataclass(frozen=True)
class _Ended:
    """One choice as it ended."""

    text: str
    is_whole: bool
    computed: Sequence[int]


class Reporter:
    """Works out the digest rows of requests that have ended."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="report")
        self._waiting = threading.Semaphore(MAX_WAITING)

    def request_ended(self, service: Service, reported: Reported, generation: Generation) -> None:
        """Queue the report of a request; returns at once. Digests stand for the first prompt alone."""
        ended = [
            _Ended(choice.text, choice.finish is not None, generation.computed(choice.index))
            for choice in generation.choices[: reported.prepared.decoding.num_choices]
            if generation.has_begun(choice.index)
        ]
        if not ended:
            return
        if not self._waiting.acquire(blocking=False):
            _log.debug("digest report dropped: %d wait already", MAX_WAITING)
            return
        self._pool.submit(self._report, service, reported, ended)

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        self._pool.shutdown()

    def _report(self, service: Service, reported: Reported, ended: Sequence[_Ended]) -> None:
        try:
            rows: dict[bytes, DigestRow] = {}
            for choice in ended:
                claims = reported.prepared.claims(
                    service.coverage, reported.scope, choice.text, choice.is_whole, choice.computed
                )
                for row in digest_rows(claims, reported.chain, choice.computed, service.coverage.block_tokens):
                    rows.setdefault(row.digest, row)
            if rows:
                service.engine.report_digests(list(rows.values()))
        except Exception:  # noqa: BLE001 - the thread's outermost loop: a hint is never worth an error
            _log.exception("the digests of a request could not be reported")
        finally:
            self._waiting.release()


def digest_rows(claims: Sequence[Claim], chain: Chain, computed: Sequence[int], block_tokens: int) -> list[DigestRow]:
    """Return each claim with the address of its last block."""
    most = max((claim.tokens for claim in claims), default=0)
    addresses = chain.addresses(computed[:most], block_tokens)
    return [DigestRow(claim.digest, claim.tokens, addresses[claim.tokens // block_tokens - 1]) for claim in claims]
