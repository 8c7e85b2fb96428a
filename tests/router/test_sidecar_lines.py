"""What the sidecar really writes is what the router reads: both sides of the hint stream in one process."""

import json

from pagoda_router.hints import PodHints
from pagoda_router.work import Match
from pagoda_sidecar.digest_table import DigestTable
from pagoda_sidecar.hints import Head, Hints, Subscriber, numbered

DIGESTS = [bytes([number]) * 16 for number in range(4)]
ADDRESSES = [bytes([number]) * 32 for number in range(4)]
POINTS = tuple((digest, 512 * (index + 1)) for index, digest in enumerate(DIGESTS))


class Stream:
    """A stream from its head on, without a socket between."""

    def __init__(self, hints: Hints, pod: PodHints) -> None:
        self._subscriber: Subscriber
        self._subscriber, head, snapshot = hints.subscribe()
        self._pod, self._sequence = pod, 0
        pod.closed()
        pod.feed(json.dumps(head).encode())
        self._feed(snapshot)

    async def follow(self) -> None:
        self._feed(await self._subscriber.lines(1.0))

    def _feed(self, lines: list[str]) -> None:
        for text in lines:
            self._sequence += 1
            self._pod.feed(numbered(text, self._sequence))


async def test_the_life_of_an_engine_as_a_router_sees_it() -> None:
    in_ram: set[bytes] = set()
    hints = Hints(DigestTable(lambda: 0.0), in_ram.__contains__)
    pod = PodHints("tiny", capacity=1000)
    Stream(hints, pod)
    assert pod.degraded == "no_engine"

    hints.set_ram_epoch("e" * 32)
    hints.engine_attached(Head(("tiny",), "ab" * 16, 16), "d" * 32)
    hints.set_device(ADDRESSES, ())
    for index in range(4):
        hints.record(DIGESTS[index], 128 * (index + 1), ADDRESSES[index])
    stream = Stream(hints, pod)
    assert pod.degraded is None
    assert pod.table is not None
    assert pod.table.match(POINTS) == Match(512, 512, 2048)

    in_ram.update(ADDRESSES[:2])
    hints.set_device((), ADDRESSES[2:])
    load = {"num_running": 1, "num_waiting": 1}
    hints.report_load(
        {**load, "outstanding_seconds": 1.5, "prefill_tokens_per_second": 400.0, "free_work_seconds": 2.0}
    )
    await stream.follow()
    hints.flush()
    await stream.follow()
    assert pod.table.match(POINTS) == Match(256, 256, 1024)
    assert pod.others_seconds() > 1.0

    hints.engine_detached()
    await stream.follow()
    assert pod.table.match(POINTS) == Match(256, 0, 1024)
    pod.table.check_integrity()
