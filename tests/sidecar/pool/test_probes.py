"""Which questions of existence are sent, with a clock and a pool of our own."""

import asyncio
from collections.abc import Sequence

import pytest

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import Probes

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


class Asked:
    """A pool that holds `present`, answers when `may_answer` is set, and keeps what it was asked."""

    def __init__(self, present: Sequence[bytes] = (), max_absent: int = 100) -> None:
        self.present = set(present)
        self.silent = False
        self.batches: list[list[bytes]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.now = 100.0
        self.saved = Metrics().counter("saved", "", ("reason",))
        self.probes = Probes(self._ask, self.saved, 1.0, max_absent, lambda: self.now)

    async def _ask(self, addresses: Sequence[bytes]) -> list[bool | None]:
        self.batches.append(list(addresses))
        answers = [None if self.silent else address in self.present for address in addresses]
        await self.may_answer.wait()
        return answers


async def test_an_absence_is_not_asked_for_again_until_its_time_is_over() -> None:
    pool = Asked([A])
    assert await pool.probes.probe([A, B]) == [True, False]
    pool.present.add(B)
    pool.now += 0.999
    assert await pool.probes.probe([A, B]) == [True, False]
    assert pool.batches == [[A, B], [A]]
    assert pool.saved.value(reason="known_absent") == 1
    pool.now += 0.001
    assert await pool.probes.probe([B]) == [True]


async def test_the_time_of_an_absence_begins_when_it_was_asked_for() -> None:
    pool = Asked()
    pool.may_answer.clear()
    probing = asyncio.create_task(pool.probes.probe([A]))
    await asyncio.sleep(0.01)
    pool.present.add(A)
    pool.now += 1.0
    pool.may_answer.set()
    assert await probing == [False]
    assert await pool.probes.probe([A]) == [True]


async def test_silence_is_no_absence() -> None:
    pool = Asked([A])
    pool.silent = True
    assert await pool.probes.probe([A]) == [False]
    pool.silent = False
    assert await pool.probes.probe([A]) == [True]


async def test_what_we_stored_is_found_at_once_even_if_it_was_asked_for_before() -> None:
    pool = Asked()
    assert await pool.probes.probe([A]) == [False]
    pool.present.add(A)
    pool.probes.present(A)
    assert await pool.probes.probe([A]) == [True]
    pool.may_answer.clear()
    probing = asyncio.create_task(pool.probes.probe([B]))
    await asyncio.sleep(0.01)
    pool.present.add(B)
    pool.probes.present(B)  # while a question is under way whose answer is older
    pool.may_answer.set()
    assert await probing == [False]
    assert await pool.probes.probe([B]) == [True]


async def test_everything_is_asked_anew_after_a_change_of_nodes_or_namespace() -> None:
    pool = Asked()
    pool.may_answer.clear()
    probing = asyncio.create_task(pool.probes.probe([A]))
    await asyncio.sleep(0.01)
    pool.probes.forget()
    again = asyncio.create_task(pool.probes.probe([A]))
    await asyncio.sleep(0.01)
    pool.may_answer.set()
    assert (await probing, await again) == ([False], [False])
    assert pool.batches == [[A], [A]]
    pool.probes.forget()
    await pool.probes.probe([A])
    assert len(pool.batches) == 3


async def test_those_who_ask_at_the_same_time_share_one_exchange() -> None:
    pool = Asked([A, C])
    pool.may_answer.clear()
    first = asyncio.create_task(pool.probes.probe([A, B]))
    second = asyncio.create_task(pool.probes.probe([B, A, C, C]))
    third = asyncio.create_task(pool.probes.probe([A]))
    await asyncio.sleep(0.01)
    pool.may_answer.set()
    assert await first == [True, False]
    assert await second == [False, True, True, True]
    assert await third == [True]
    assert pool.batches == [[A, B], [C]]
    assert pool.saved.value(reason="shared") == 4  # B, A, the second C; A


async def test_whoever_leaves_takes_nobody_s_answer_along() -> None:
    pool = Asked([A])
    pool.may_answer.clear()
    first = asyncio.create_task(pool.probes.probe([A]))
    second = asyncio.create_task(pool.probes.probe([A]))
    await asyncio.sleep(0.01)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    pool.may_answer.set()
    assert await second == [True]
    assert pool.batches == [[A]]


async def test_absences_are_bounded_and_the_oldest_go_first() -> None:
    pool = Asked(max_absent=2)
    for address in (A, B, C):
        assert await pool.probes.probe([address]) == [False]
        pool.now += 0.01
    pool.batches.clear()
    assert await pool.probes.probe([B, C, A]) == [False] * 3
    assert pool.batches == [[A]]
    pool.now += 10
    await pool.probes.probe([b"d" * 32])
    assert len(pool.probes._absent) == len(pool.probes._batches) == 1
