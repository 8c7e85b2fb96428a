"""Elections in virtual time: two candidates, one Lease, ways to the API server that hang or lose."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest

from pagoda_operator.kube.api import Api
from pagoda_operator.kube.election import Election
from pagoda_operator.kube.errors import UnreachableError
from pagoda_operator.kube.fence import Fence
from pagoda_operator.kube.lease import MAX_PROMISE_SECONDS, Terms, claim
from pagoda_operator.kube.transport import Answer, Request
from tests.support.api_server import MemoryApiServer
from tests.support.virtual_time import run_virtually

TERMS = Terms()
LEASE = ("coordination.k8s.io/v1", "leases", "system", "pagoda")


class Ended(Exception):
    """What stands for the end of the process."""


class Way:
    """A candidate's way to the API server; requests to a black hole are held, and may be let through later."""

    def __init__(self, server: MemoryApiServer) -> None:
        self._server = server
        self.is_black_hole = False
        self.held: list[Request] = []

    async def send(self, request: Request) -> Answer:
        if not self.is_black_hole:
            await asyncio.sleep(0.01)
            return await self._server.send(request)
        self.held.append(request)
        await asyncio.sleep(TERMS.call)
        raise UnreachableError("no answer")


class Candidate:
    """One process: when it led, and what ended it."""

    def __init__(self, server: MemoryApiServer, identity: str) -> None:
        self.clock = asyncio.get_running_loop().time
        self.way = Way(server)
        self.fence = Fence(self.clock, self._end)
        self.election = Election(Api(self.way), self.fence, "system", "pagoda", identity, TERMS, self.clock, self._end)
        self.leads_since: float | None = None
        self.ended_at: float | None = None
        self.reason = ""

    def may_write(self) -> bool:
        try:
            self.fence.check()
        except Ended:
            return False
        return True

    async def run(self) -> None:
        await self.election.acquire()
        self.leads_since = self.clock()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.election.hold())
            tasks.create_task(self.fence.watch())

    def _end(self, reason: str) -> NoReturn:
        self.reason = self.reason or reason
        self.ended_at = self.ended_at or self.clock()
        raise Ended(reason)


@asynccontextmanager
async def two_candidates() -> AsyncIterator[tuple[MemoryApiServer, Candidate, Candidate]]:
    server = MemoryApiServer()
    first, second = Candidate(server, "first"), Candidate(server, "second")
    tasks = [asyncio.create_task(first.run())]
    await asyncio.sleep(0.5)
    tasks.append(asyncio.create_task(second.run()))
    await asyncio.sleep(60)
    try:
        yield server, first, second
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def story(told: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run_virtually(told())

    test.__name__ = told.__name__
    return test


@story
async def test_one_leads_and_the_other_waits() -> None:
    async with two_candidates() as (server, first, second):
        await asyncio.sleep(600)
        assert first.may_write()
        assert second.leads_since is None
        assert server.objects[LEASE]["spec"]["holderIdentity"] == "first"
        assert server.objects[LEASE]["spec"]["leaseTransitions"] == 0


@story
async def test_a_black_holed_leader_has_ended_before_another_leads_within_twenty_seconds() -> None:
    async with two_candidates() as (server, first, second):
        first.way.is_black_hole = True
        begin = first.clock()
        await asyncio.sleep(20)
        assert first.ended_at is not None
        assert second.leads_since is not None
        assert begin < first.ended_at < second.leads_since < begin + 20
        assert second.leads_since - first.ended_at >= TERMS.lease - TERMS.renew - 0.1
        assert server.objects[LEASE]["spec"]["leaseTransitions"] == 1


def test_no_number_of_transitions_keeps_a_candidate_from_a_lease_that_the_api_server_takes() -> None:
    spec = {"holderIdentity": "", "leaseTransitions": 2**31 - 1}
    claimed = claim({"spec": spec}, "models", "pagoda", "first", TERMS, datetime.datetime.now(datetime.UTC))
    assert 0 <= claimed["spec"]["leaseTransitions"] < 2**31


@story
async def test_renewals_that_come_out_of_a_black_hole_late_are_refused() -> None:
    async with two_candidates() as (server, first, second):
        first.way.is_black_hole = True
        await asyncio.sleep(20)
        writes = [request for request in first.way.held if request.method == "PUT"]
        assert writes
        assert [(await server.send(request)).status for request in writes] == [409] * len(writes)
        await asyncio.sleep(20)
        assert second.may_write()


@story
async def test_a_leader_whose_clock_jumps_ends_at_its_next_look() -> None:
    async with two_candidates() as (_, first, second):
        real = first.fence._clock
        first.fence._clock = lambda: real() + TERMS.renew  # it slept, and nothing else of it has run since
        assert not first.may_write()
        assert first.reason == "the Lease was not renewed in time"
        assert second.leads_since is None


@story
async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    server = MemoryApiServer()
    one = Candidate(server, "one")
    await one.election.acquire()
    sent_at = one.clock()
    await asyncio.sleep(TERMS.retry)

    async def slow(request: Request) -> Answer:
        answer = await server.send(request)
        await asyncio.sleep(1.4)
        return answer

    one.way.send = slow  # type: ignore[method-assign]
    await one.election._renew()
    await asyncio.sleep(sent_at + TERMS.retry + 2 * 1.4 + TERMS.renew - one.clock() - 1.3)
    assert not one.may_write()


@story
async def test_who_finds_another_holder_in_the_lease_ends_at_once() -> None:
    async with two_candidates() as (server, first, _):
        server.objects[LEASE]["spec"]["holderIdentity"] = "somebody"
        server.objects[LEASE]["metadata"]["resourceVersion"] = "900"
        begin = first.clock()
        await asyncio.sleep(3 * TERMS.retry)
        assert first.reason == "the Lease is held by somebody"
        assert first.ended_at is not None
        assert first.ended_at < begin + 2 * TERMS.retry + 1


@story
async def test_an_annotation_on_the_lease_costs_the_leader_nothing() -> None:
    async with two_candidates() as (server, first, second):
        for version in range(900, 960):
            server.objects[LEASE]["metadata"] |= {"annotations": {"by": "hand"}, "resourceVersion": str(version)}
            await asyncio.sleep(1)
        assert first.may_write()
        assert second.leads_since is None
        assert server.objects[LEASE]["metadata"]["annotations"] == {"by": "hand"}


@story
async def test_a_released_lease_is_taken_at_the_next_try() -> None:
    async with two_candidates() as (_, first, second):
        begin = first.clock()
        await first.election.release()
        await asyncio.sleep(TERMS.retry + 0.1)
        assert second.leads_since is not None
        assert second.leads_since < begin + TERMS.retry + 0.1


async def leaders_by_the_second(seconds: float, *candidates: Candidate) -> list[int]:
    """Return how many may write, ten times a second; nobody is ended by being asked."""
    found = []
    for _ in range(round(10 * seconds)):
        await asyncio.sleep(0.1)
        found.append(sum(one.fence._until is not None and one.clock() < one.fence._until for one in candidates))
    return found


@story
async def test_a_lease_that_is_deleted_is_made_anew_by_who_holds_it_and_never_do_two_lead() -> None:
    async with two_candidates() as (server, first, second):
        for offset in range(8):  # whoever comes first after it
            await asyncio.sleep(30 + offset * TERMS.retry / 8)
            del server.objects[LEASE]
            assert set(await leaders_by_the_second(30, first, second)) == {1}
            assert server.objects[LEASE]["spec"]["holderIdentity"] == "first"
        assert second.leads_since is None


@story
async def test_a_lease_that_is_deleted_while_its_holder_is_cut_off_is_free_after_its_whole_time() -> None:
    async with two_candidates() as (server, first, second):
        first.way.is_black_hole = True
        begin = first.clock()
        del server.objects[LEASE]
        assert 2 not in await leaders_by_the_second(TERMS.lease + 2 * TERMS.retry, first, second)
        assert first.ended_at is not None
        assert second.leads_since is not None
        assert begin + TERMS.lease <= second.leads_since


@story
async def test_a_newcomer_that_finds_no_lease_waits_until_no_holder_may_write() -> None:
    async with two_candidates() as (server, first, second):
        for offset in range(8):
            newcomer = Candidate(server, f"newcomer-{offset}")
            await asyncio.sleep(offset * TERMS.retry / 8)
            del server.objects[LEASE]
            task = asyncio.create_task(newcomer.run())
            assert set(await leaders_by_the_second(30, first, second, newcomer)) == {1}
            assert newcomer.leads_since is None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        first.way.is_black_hole = True
        del server.objects[LEASE]
        newcomer = Candidate(server, "last")
        task = asyncio.create_task(newcomer.run())
        assert 2 not in await leaders_by_the_second(TERMS.lease, first, second, newcomer)
        assert newcomer.leads_since is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@story
async def test_a_promise_of_years_that_somebody_wrote_into_the_lease_keeps_nobody_for_years() -> None:
    async with two_candidates() as (server, first, second):
        server.objects[LEASE]["spec"] |= {"leaseDurationSeconds": 2**31 - 1, "holderIdentity": "somebody"}
        server.objects[LEASE]["metadata"]["resourceVersion"] = "900"
        await asyncio.sleep(MAX_PROMISE_SECONDS + 2 * TERMS.retry)
        assert first.ended_at is not None
        assert second.leads_since is not None


@story
async def test_a_lease_that_its_holder_gave_up_and_that_is_gone_is_made_at_the_next_try() -> None:
    async with two_candidates() as (server, first, second):
        await first.election.release()
        second.election._sight.see(server.objects.pop(LEASE), second.clock())
        await asyncio.sleep(TERMS.retry + 0.1)
        assert second.leads_since is not None


@story
async def test_of_two_who_see_a_free_lease_one_leads() -> None:
    server = MemoryApiServer()
    candidates = [Candidate(server, f"candidate-{number}") for number in range(5)]
    tasks = [asyncio.create_task(candidate.run()) for candidate in candidates]
    await asyncio.sleep(30)
    assert len([candidate for candidate in candidates if candidate.leads_since is not None]) == 1
    assert all(candidate.ended_at is None for candidate in candidates)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@story
async def test_a_holder_that_promised_a_longer_time_is_waited_for() -> None:
    async with two_candidates() as (server, first, second):
        server.objects[LEASE]["spec"]["leaseDurationSeconds"] = 40
        first.way.is_black_hole = True
        await asyncio.sleep(35)
        assert second.leads_since is None
        await asyncio.sleep(10)
        assert second.leads_since is not None


@story
async def test_readiness_names_what_keeps_the_lease_from_being_read() -> None:
    async with two_candidates() as (_, _, second):
        assert second.election.problem == ""
        second.way.is_black_hole = True
        await asyncio.sleep(TERMS.lease + 2 * TERMS.retry)
        assert second.election.problem == "no answer"


def test_times_that_would_let_two_lead_are_refused() -> None:
    for wrong in (
        {"lease": 8.0, "renew": 8.0},
        {"call": 2.0, "retry": 2.0},
        {"retry": 8.0},
        {"call": 0.0},
    ):
        with pytest.raises(AssertionError):
            Terms(**wrong)


def test_a_fence_that_was_never_opened_lets_nothing_through() -> None:
    def end(reason: str) -> NoReturn:
        raise Ended(reason)

    with pytest.raises(Ended, match="without the Lease"):
        Fence(end=end).check()
