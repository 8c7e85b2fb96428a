"""One look at one pod: its two doors side by side, each with a deadline and a size it may not exceed.

Nothing a pod does may cost more than that: it may accept and be silent, trickle, redirect or never end.
"""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pagoda_operator.names import ENGINE_PORT, SIDECAR_PORT
from pagoda_operator.proofs import is_proof_of
from pagoda_operator.scrape.answers import (
    MAX_ANSWER_BYTES,
    AnswerError,
    Answers,
    EngineAnswer,
    Failure,
    SidecarAnswer,
    one_line,
    read_ready,
    read_summary,
)
from pagoda_operator.scrape.http import HttpError, get
from pagoda_operator.scrape.pod import EnginePod

DEADLINE_SECONDS = 2.0

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Ports:
    """Where a pod's doors are."""

    engine: int = ENGINE_PORT
    sidecar: int = SIDECAR_PORT


async def look_at(pod: EnginePod, ports: Ports, known: EngineAnswer | None = None) -> Answers:
    """Ask both doors of `pod`, the sidecar's alone where the engine's answer is known and is of the tiers as they are.

    Takes at most twice `DEADLINE_SECONDS` and raises nothing that a pod can cause.
    """
    assert pod.address is not None
    engine = functools.partial(_door, pod.address, ports.engine, "/ready", pod.container_id, "engine", read_ready)
    sidecar = _door(pod.address, ports.sidecar, "/v1/summary", pod.sidecar_id, "sidecar", read_summary)
    if known is None:
        return Answers(*await asyncio.gather(engine(), sidecar))
    said = await sidecar
    is_news = isinstance(said, SidecarAnswer) and not is_proof_of(said.summary, known.proof)
    return Answers(await engine() if is_news else known, said)


async def _door(
    host: str, port: int, path: str, container_id: str | None, name: str, read: Callable[[int, bytes], Answer]
) -> Answer | Failure:
    if container_id is None:
        return Failure("absent", f"the container {name} does not run")
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            status, body = await get(host, port, path, MAX_ANSWER_BYTES)
        return read(status, body)
    except TimeoutError:
        return Failure("silent", f"the {name} did not answer within {DEADLINE_SECONDS:g} s")
    except (AnswerError, HttpError) as error:
        return Failure("wrong", f"the {name} answered what cannot be read: {error}")
    except OSError as error:
        return Failure("unreachable", one_line(f"the {name} cannot be reached: {error or type(error).__name__}"))
