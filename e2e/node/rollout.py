"""A rollout of a pool's one engine, looked at again and again while it goes on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from e2e.node.pods import RunningPool, statuses_of

# True is said of pods that have shown it.
_CLAIMS = ("Ready", "CacheReady", "PoolReady")


@dataclass
class Rollout:
    """What the pool says of it, each time held against what its pods are."""

    pool: RunningPool
    former: str
    """The name of the pod that goes."""
    is_new: Callable[[dict[str, Any]], bool]
    """Whether a pod is of the newest spec."""
    ending_at: float | None = None
    """When the former pod was first seen to be terminating."""
    told: set[tuple[str, str, str]] = field(default_factory=set)
    """Type, status and reason of every condition of the newest spec, as it was at some time."""

    def is_over(self) -> bool:
        """Look once; return whether the pool is ready and the former pod on its way out."""
        told = {kind: (found["status"], found["reason"]) for kind, found in self.pool.conditions().items()}
        # After the status: what was true when it was written is still true, for nothing else changes meanwhile.
        pods = self.pool.pods("engine")
        ending = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]}
        if self.former in ending and self.ending_at is None:
            self.ending_at = time.monotonic()
        self.told.update((kind, *said) for kind, said in told.items())
        claimed = [kind for kind in _CLAIMS if kind in told and told[kind][0] == "True"]
        staying = [pod for pod in pods if pod["metadata"]["name"] not in ending]
        if claimed:
            assert [self.is_new(pod) for pod in staying] == [True], f"{claimed} with pods of the former spec"
            assert all(status["ready"] for status in statuses_of(staying[0])), f"{claimed} before it was"
        return "Ready" in claimed
