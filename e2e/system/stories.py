"""What may miss on a busy machine is told again, in other words, until it is seen; what must hold is always asserted.

    def story(salt): ...assert text and sums...; demand(answer.sources["ram"] > 0, answer.sources)
    shown(story)

A load is not made or not finished when computing is sooner, and a hint may come after the request that wanted it: both
are right, and neither is what a test is about. Wrong tokens, sums that do not add up and failed requests never are.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.pods import Pods

_Result = TypeVar("_Result")

_MAX_TELLINGS = 8  # a load may lose its race against computing, on a busy machine five times in a row


class NotSeen(Exception):
    """What the story wanted to show did not come about this time."""


def demand(is_seen: bool, found: object) -> None:
    """End this telling unless what it is about `is_seen`."""
    if not is_seen:
        raise NotSeen(found)


def shown(story: Callable[[str], _Result]) -> _Result:
    """Tell `story`, which takes a salt for its prompts, until all that it demands is seen; return what it returns."""
    for attempt in range(_MAX_TELLINGS):
        try:
            return story(f"telling {attempt}: ")
        except NotSeen as not_seen:
            last = not_seen
    raise AssertionError(f"never seen in {_MAX_TELLINGS} tellings; the last time there was {last}")


def eventually(condition: Callable[[], bool], otherwise: str, seconds: float = 30.0) -> None:
    """Wait until `condition` holds; fail with `otherwise` after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.05)


def wait_parked(pods: Pods) -> None:
    """Wait until no session is left on the device of `chat-0`."""
    engine = pods.engine("chat-0")
    eventually(lambda: engine.metric("pagoda_blocks", state="cached") == 0, "the session was never parked")


def wait_settled(pods: Pods, num_blocks: int) -> None:
    """Wait until the disk of `chat-0` and the pool hold so many blocks: what is parked and was used twice."""
    sidecar = pods.sidecar("chat-0")
    eventually(
        lambda: (
            sidecar.metric("pagoda_tier_blocks", tier="disk") >= num_blocks and pods.memcached_items() >= num_blocks
        ),
        "the blocks never reached disk and pool",
    )
    time.sleep(0.5)  # the last of them may still be being written
