"""One look at one pod: its two doors side by side, each with a deadline and a size it may not exceed.

Nothing a pod does may cost more than that: it may accept and be silent, trickle, redirect or never end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from pagoda_operator.names import ENGINE_PORT, SIDECAR_PORT
from pagoda_operator.scrape.answers import (
    MAX_ANSWER_BYTES,
    AnswerError,
    EngineAnswer,
    SidecarAnswer,
    one_line,
    read_ready,
    read_summary,
)
from pagoda_operator.scrape.pod import EnginePod

DEADLINE_SECONDS = 2.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Ports:
    """Where a pod's doors are."""

    engine: int = ENGINE_PORT
    sidecar: int = SIDECAR_PORT


@dataclass(frozen=True)
class Failure:
    """A door that did not answer as it should."""

    outcome: str
    """For the metric: silent, unreachable or wrong."""
    reason: str


@dataclass(frozen=True)
class Answers:
    """What both doors said."""

    engine: EngineAnswer | Failure
    sidecar: SidecarAnswer | Failure


def new_session() -> aiohttp.ClientSession:
    """Make the session that all looks share. Connections are not kept: the next look is half a minute away."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True, use_dns_cache=False)
    timeout = aiohttp.ClientTimeout(total=DEADLINE_SECONDS)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


async def look_at(session: aiohttp.ClientSession, pod: EnginePod, ports: Ports) -> Answers:
    """Ask both doors of `pod`; takes at most `DEADLINE_SECONDS` and raises nothing that a pod can cause."""
    assert pod.address is not None
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    engine, sidecar = await asyncio.gather(
        _door(session, f"http://{host}:{ports.engine}/ready", pod.container_id, "engine", read_ready),
        _door(session, f"http://{host}:{ports.sidecar}/v1/summary", pod.sidecar_id, "sidecar", read_summary),
    )
    return Answers(engine, sidecar)


async def _door(
    session: aiohttp.ClientSession,
    url: str,
    container_id: str | None,
    name: str,
    read: Callable[[int, bytes], Answer],
) -> Answer | Failure:
    if container_id is None:
        return Failure("absent", f"the container {name} does not run")
    try:
        return read(*await _get(session, url))
    except TimeoutError:
        return Failure("silent", f"the {name} did not answer within {DEADLINE_SECONDS:g} s")
    except AnswerError as error:
        return Failure("wrong", f"the {name} answered what cannot be read: {error}")
    except (aiohttp.ClientError, OSError) as error:
        return Failure("unreachable", one_line(f"the {name} cannot be reached: {error or type(error).__name__}"))


async def _get(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise AnswerError(f"longer than {MAX_ANSWER_BYTES} bytes")
        return response.status, bytes(body)
