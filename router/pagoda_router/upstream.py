"""One request to one pod: aiohttp's errors become ours here and nowhere else.

Each request has a connection of its own, closed at its end however it ends. A kept-alive one could be closed by the
pod in the very moment it is used, which cannot be told from a pod that died with the request; and closing is how an
engine learns that nobody wants the rest.
"""

import contextlib
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict

from pagoda_router.errors import (
    DrainOverError,
    PodHungError,
    PodLostError,
    PodRefusedError,
    PodSilentError,
    RouterError,
)
from pagoda_router.pods import Pod
from pagoda_router.waits import Waits

_CHUNK_BYTES = 64 << 10
# Headers that aiohttp would otherwise make up.
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


@dataclass(frozen=True)
class Deadlines:
    """How long to wait for a pod, in seconds. A stream as a whole may take for ever."""

    connect: float = 2.0
    first_byte: float = 900.0
    """From the request's end to the answer's first byte: queueing and prefill, for a whole answer all of it."""
    idle: float = 300.0
    """Between two pieces of a stream, and for a client to take one."""


@dataclass(frozen=True)
class Patience:
    """What ends the wait for a pod."""

    deadlines: Deadlines
    drain: Waits
    """Ended when the router's drain is over."""
    hang: Waits
    """Ended when the pod hangs and another could answer; asked only until the answer's headers are here."""

    def error(self, pod: Pod, seconds: float) -> RouterError:
        """Return what a wait of `seconds` for `pod` has ended with."""
        if self.drain.is_ended:
            return DrainOverError("the router is stopping and its time to drain is over")
        if self.hang.is_ended:
            return PodHungError(f"pod {pod.name} hangs")
        return PodSilentError(f"pod {pod.name} sent nothing for {seconds:g} s")


@dataclass(frozen=True)
class Outgoing:
    """A request as a pod gets it."""

    method: str
    path: str
    headers: CIMultiDict[str]
    body: bytes | None


class Upstream:
    """A pod's answer, of which the headers are here."""

    def __init__(self, pod: Pod, response: aiohttp.ClientResponse, patience: Patience) -> None:
        self.pod = pod
        self.response = response
        self._patience = patience
        self._has_begun = False

    @property
    def is_event_stream(self) -> bool:
        """Whether the answer is a stream of server-sent events."""
        return self.response.content_type == "text/event-stream"

    @property
    def is_delimited(self) -> bool:
        """Whether a cut connection can be told from the end."""
        headers = self.response.headers
        return "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()

    async def read(self) -> bytes | None:
        """Return the next piece as it came, None at the end.

        Raises:
            PodLostError: the connection ended too early.
            PodSilentError: nothing came within the deadline.
            DrainOverError: nothing came before the router's end.
        """
        patience, deadlines = self._patience, self._patience.deadlines
        seconds = deadlines.idle if self._has_begun else deadlines.first_byte
        try:
            async with patience.drain.open(seconds):
                chunk = await self.response.content.readany()
        except TimeoutError as error:
            raise patience.error(self.pod, seconds) from error
        except (aiohttp.ClientError, OSError) as error:
            raise PodLostError(f"pod {self.pod.name} was lost: {type(error).__name__}") from error
        self._has_begun = True
        return chunk or None


@contextlib.asynccontextmanager
async def sent(
    session: aiohttp.ClientSession, pod: Pod, outgoing: Outgoing, patience: Patience
) -> AsyncIterator[Upstream]:
    """Send a request and yield the answer when its headers are here; closes the connection at the end.

    Raises:
        PodRefusedError: no connection within the deadline.
        PodLostError: the connection ended before the headers.
        PodSilentError, PodHungError, DrainOverError: no headers within the deadline, or until the wait was ended.
    """
    response = await _request(session, pod, outgoing, patience)
    try:
        yield Upstream(pod, response, patience)
    finally:
        response.close()


async def _request(
    session: aiohttp.ClientSession, pod: Pod, outgoing: Outgoing, patience: Patience
) -> aiohttp.ClientResponse:
    # A file object, because aiohttp warns of large bytes; it is written in pieces then.
    body = io.BytesIO(outgoing.body) if outgoing.body is not None else None
    deadlines = patience.deadlines
    try:
        async with patience.drain.open(), patience.hang.open(deadlines.first_byte):
            return await session.request(
                outgoing.method,
                f"http://{pod.engine}{outgoing.path}",
                headers=outgoing.headers,
                data=body,
                skip_auto_headers=_NO_AUTO_HEADERS,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=deadlines.connect),
            )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise PodRefusedError(f"pod {pod.name} cannot be reached: {type(error).__name__}") from error
    except TimeoutError as error:
        raise patience.error(pod, deadlines.first_byte) from error
    except (aiohttp.ClientError, OSError) as error:
        raise PodLostError(f"pod {pod.name} was lost: {type(error).__name__}") from error


def session_of_requests() -> aiohttp.ClientSession:
    """Return the session that requests are sent through: one connection each, bytes as they come."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        read_bufsize=_CHUNK_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),  # one client's cookie must not go out with another's request
    )
