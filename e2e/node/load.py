"""Clients that ask a pool all the time, and remember what came of each request."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from e2e.node.pods import RunningPool
from tests.support.program import RequestFailed

STREAM_TOKENS = 80
NUM_STREAMS = 2


@dataclass(frozen=True)
class Stream:
    """A streamed answer, as its client saw it."""

    pod: str
    ended_at: float
    problem: str = ""
    """Why it is not whole."""


@contextlib.contextmanager
def asking(pool: RunningPool, system: str) -> Iterator[list[str]]:
    """Ask one question after the other meanwhile; the list grows by what came of each."""
    answers: list[str] = []

    def ask() -> None:
        try:
            pool.ask(f"Number {len(answers)}?", system)
        except OSError as error:
            answers.append(str(error))
        else:
            answers.append("answered")

    with _repeating(ask):
        yield answers


@contextlib.contextmanager
def streaming(pool: RunningPool) -> Iterator[list[Stream]]:
    """Have `NUM_STREAMS` answers written at any time, each some seconds long; the list grows as they end."""
    streams: list[Stream] = []
    numbers = itertools.count()

    def stream() -> None:
        try:
            answer = pool.stream(f"Tell me about number {next(numbers)}.", STREAM_TOKENS)
        except (OSError, RequestFailed) as error:
            streams.append(Stream("", time.monotonic(), str(error)))
            return
        num_tokens = answer.usage["completion_tokens"]
        is_whole = answer.finish == "length" and num_tokens == STREAM_TOKENS
        pod = answer.headers["X-Pagoda-Route"].split(";")[0].removeprefix("pod=")
        problem = "" if is_whole else f"{answer.finish} after {num_tokens} tokens"
        streams.append(Stream(pod, time.monotonic(), problem))

    with contextlib.ExitStack() as running:
        for _ in range(NUM_STREAMS):
            running.enter_context(_repeating(stream))
            time.sleep(1)  # so that they do not all end at one time
        yield streams


@contextlib.contextmanager
def _repeating(work: Callable[[], None]) -> Iterator[None]:
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
