"""What stands behind the gate once a model is loaded: everything a handler needs, in one frozen piece."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagoda_engine.core.tiers import DigestRow
from pagoda_engine.serving.auth import Callers
from pagoda_engine.serving.coverage import Coverage
from pagoda_engine.serving.generation import Submitter
from pagoda_engine.serving.prepare import Language, Limits
from pagoda_engine.serving.public import PublicTexts


class ServingEngine(Submitter, Protocol):
    """What the server needs of the engine."""

    def report_digests(self, rows: Sequence[DigestRow]) -> None:
        """Queue digest rows for the sidecar; returns at once."""


@dataclass(frozen=True)
class Service:
    """One loaded model and the engine that computes it."""

    model: str
    """What clients put in `model`."""
    created: int
    """When it was loaded, in seconds since 1970."""
    engine: ServingEngine
    language: Language
    limits: Limits
    callers: Callers
    public: PublicTexts
    coverage: Coverage
    hand_over: Callable[[], int]
    """Push blocks to the pool that lacks them; blocks for seconds, returns how many, never raises."""
    proof: Callable[[], dict[str, Any]]
    """What the engine has shown of itself, as `/ready` tells it."""
