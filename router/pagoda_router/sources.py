"""Where a router learns who its pods are: a file, or Kubernetes. One of the two; the fleet does not know which.

A source tells of all pods at once, whenever something changed. While it cannot be asked nothing changes: the last pods
stay, each with its own `/ready`, and the problem is shown.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pagoda_router.pods import PODS_FILE, Pod, parse_pods
from pagoda_runtime.files import LiveFile


@dataclass(frozen=True)
class Sighting:
    """A pod as its source sees it now."""

    name: str
    pod: Pod | None
    """None: it is expected, but nobody could talk to it yet."""
    withheld: str = ""
    """Why no request may be sent there, whatever it says of itself; empty: nothing speaks against it."""


Show = Callable[[Sequence[Sighting]], None]


class PodSource(Protocol):
    """See the head of this file."""

    @property
    def problem(self) -> str:
        """Why nothing new is heard of pods, for people; empty while all is well."""
        ...

    def following(self, show: Show) -> AbstractAsyncContextManager[None]:
        """Call `show` with all pods, and again with each change, while the context is open.

        Raises:
            OSError: on entry, if pods could never be told.
            ValueError: likewise.
        """
        ...


class PodsFile:
    """`pods.json` in the settings folder, followed."""

    problem = ""  # a bad version is logged and the last good one kept

    def __init__(self, settings_dir: Path) -> None:
        self._path = settings_dir / PODS_FILE

    @contextlib.asynccontextmanager
    async def following(self, show: Show) -> AsyncIterator[None]:
        """Follow the file; it must be there and right at the start."""
        file = LiveFile(self._path, parse_pods)

        def tell(pods: Sequence[Pod]) -> None:
            show([Sighting(pod.name, pod) for pod in pods])

        tell(file.value)
        async with file.following(tell):
            yield
