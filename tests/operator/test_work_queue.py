"""The work queue in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pagoda_operator.instruments import Instruments
from pagoda_operator.kube.errors import ConflictError
from pagoda_operator.work_queue import Key, Pace, WorkQueue
from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics
from tests.support.virtual_time import run_virtually

POOL, OTHER = ("default", "chat"), ("default", "code")


class Works:
    """Work that takes its time, and what was seen of it."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.begun: list[tuple[float, Key]] = []
        self.running: list[Key] = []
        self.most_at_once = 0
        self.answer: Callable[[Key], float | None] = lambda _: None

    async def __call__(self, namespace: str, name: str) -> float | None:
        key = (namespace, name)
        assert key not in self.running, "two at a time of one pool"
        self.begun.append((asyncio.get_running_loop().time() - 1000, key))
        self.running.append(key)
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            await asyncio.sleep(self.seconds)
            return self.answer(key)
        finally:
            self.running.remove(key)

    def times(self, key: Key) -> list[float]:
        return [round(time, 3) for time, begun in self.begun if begun == key]


@asynccontextmanager
async def working(
    works: Works, pace: Pace | None = None, instruments: Instruments | None = None
) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(works, instruments or Instruments(Metrics()), pace or Pace(), chance=lambda: 1.0)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
        queue.check_integrity()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def story(told: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run_virtually(told())

    test.__name__ = told.__name__
    return test


@story
async def test_triggers_of_one_pool_add_up_to_one() -> None:
    works = Works()
    async with working(works) as queue:
        for _ in range(100):
            queue.add(POOL)
        await asyncio.sleep(10)
    assert works.times(POOL) == [0.0]


@story
async def test_a_trigger_while_a_pool_runs_brings_one_more_run_after_it() -> None:
    works = Works()
    async with working(works) as queue:
        queue.add(POOL)
        await asyncio.sleep(0.5)
        queue.add(POOL)
        queue.add(POOL)
        await asyncio.sleep(10)
    assert works.times(POOL) == [0.0, 1.0]


@story
async def test_pools_run_side_by_side_but_only_so_many() -> None:
    works = Works()
    async with working(works, Pace(concurrency=3)) as queue:
        for number in range(7):
            queue.add(("default", f"pool-{number}"))
        await asyncio.sleep(10)
    assert works.most_at_once == 3
    assert [time for time, _ in works.begun] == [0, 0, 0, 1, 1, 1, 2]


@story
async def test_failures_in_a_row_wait_twice_as_long_each_time_up_to_a_minute() -> None:
    works = Works(0.0)
    works.answer = failing
    async with working(works) as queue:
        queue.add(POOL)
        await asyncio.sleep(250)
    gaps = [round(after - before, 2) for before, after in zip(works.times(POOL), works.times(POOL)[1:], strict=False)]
    assert gaps == [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@story
async def test_a_success_ends_the_backoff() -> None:
    works = Works(0.0)
    works.answer = failing
    async with working(works) as queue:
        queue.add(POOL)
        await asyncio.sleep(10)
        works.answer = lambda _: None
        queue.add(POOL)
        await asyncio.sleep(0.01)
        works.answer = failing
        queue.add(POOL)
        await asyncio.sleep(0.3)
    assert round(works.times(POOL)[-1] - works.times(POOL)[-2], 2) == 0.25


@story
async def test_a_pool_that_fails_delays_no_other() -> None:
    works = Works(0.0)
    works.answer = lambda key: failing(key) if key == POOL else None
    async with working(works, Pace(concurrency=1)) as queue:
        queue.add(POOL)
        queue.add(OTHER)
        await asyncio.sleep(1)
    assert works.times(OTHER) == [0.0]


@story
async def test_its_own_events_do_not_shorten_the_backoff_of_work_that_failed() -> None:
    works = Works(0.0)
    async with working(works) as queue:

        def writing_and_failing(key: Key) -> None:
            queue.add(key)  # what a watch says of the write
            raise ConflictError("no")

        works.answer = writing_and_failing
        queue.add(POOL)
        await asyncio.sleep(60)
    assert len(works.begun) <= 9


@story
async def test_a_trigger_during_a_backoff_is_worth_a_try_at_once() -> None:
    works = Works(0.0)
    works.answer = failing
    async with working(works) as queue:
        queue.add(POOL)
        await asyncio.sleep(40)
        before = len(works.begun)
        queue.add(POOL)
        await asyncio.sleep(0.01)
        assert len(works.begun) == before + 1


@story
async def test_work_that_wants_to_look_again_does_and_the_earlier_of_two_times_holds() -> None:
    works = Works(0.0)
    works.answer = lambda _: 5.0
    async with working(works) as queue:
        queue.add_after(POOL, 3.0)
        queue.add_after(POOL, 9.0)
        queue.add_after(POOL, 2.0)
        await asyncio.sleep(8)
    assert works.times(POOL) == [2.0, 7.0]


@story
async def test_a_cancelled_queue_cuts_off_its_work_and_begins_nothing_more() -> None:
    works = Works()
    works.answer = failing
    queue = WorkQueue(works, Instruments(Metrics()), Pace(concurrency=1))
    task = asyncio.create_task(queue.run())
    queue.add(POOL)
    queue.add(OTHER)
    queue.add_after(("default", "later"), 5)
    await asyncio.sleep(1.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert works.running == []
    await asyncio.sleep(100)
    assert works.begun == [(0.0, POOL), (1.0, OTHER)]
    queue.check_integrity()


@story
async def test_metrics_tell_results_durations_depth_adds_and_retries() -> None:
    works, metrics = Works(), Metrics()
    instruments = Instruments(metrics)
    works.answer = lambda key: failing(key) if key == POOL else None
    async with working(works, Pace(concurrency=1), instruments) as queue:
        queue.add(POOL)
        queue.add(OTHER)
        assert instruments.queue_depth.value() == 2
        await asyncio.sleep(2.1)
        assert instruments.queue_depth.value() == 0
    assert instruments.queue_adds.value() == 3  # the third when the backoff was over
    assert instruments.queue_retries.value() >= 1
    assert instruments.reconciles.value(result="Conflict") >= 1
    assert instruments.reconciles.value(result="Done") == 1
    assert f"{names.OPERATOR_RECONCILE_SECONDS}_count {len(works.begun):.1f}\n" in metrics.exposition().decode()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3), st.booleans()), max_size=30))
def test_after_every_trigger_its_pool_is_looked_at_and_never_twice_at_a_time(
    triggers: list[tuple[str, float, bool]],
) -> None:
    async def told() -> None:
        works = Works(0.7)
        last: dict[Key, float] = {}
        async with working(works, Pace(concurrency=2)) as queue:
            for name, wait, fails in triggers:
                await asyncio.sleep(wait)
                works.answer = failing if fails else lambda _: None
                queue.add(("default", name))
                last["default", name] = asyncio.get_running_loop().time() - 1000
                queue.check_integrity()
            works.answer = lambda _: None
            await asyncio.sleep(200)
        for key, time in last.items():
            assert works.begun, key
            assert max(begun for begun, of in works.begun if of == key) >= time

    run_virtually(told())


def failing(_: Key) -> None:
    raise ConflictError("somebody came first")
