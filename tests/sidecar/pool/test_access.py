"""TLS with client certificates and memcached's own users, against the real server."""

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import Access, Credentials, MemcachedPool, PoolCounters, PoolNode, read_access
from tests.sidecar.pool.peers import speaking
from tests.sidecar.pool.records import (
    FAST,
    NAMESPACE,
    PATIENT,
    Record,
    fetch_all,
    named,
    operations,
    pool_over,
    record,
    records,
    store_all,
)
from tests.support.certificates import Authority, Issued, certificate_folder, make_authority, needs_openssl
from tests.support.memcached import Memcached, needs_memcached, running_memcached

pytestmark = [needs_memcached, needs_openssl]

_GOOD = Credentials(b"chat", b"pass:word-1")


@dataclass(frozen=True)
class Tls:
    """One authority, one client certificate, and nodes that speak TLS."""

    folder: Path
    authority: Authority
    client: Issued
    open: Memcached  # asks for no client certificate
    strict: Memcached  # asks for one, and for a user

    def access(self, *, has_client: bool = True, credentials: Credentials | None = _GOOD) -> Access:
        folder = self.authority.write_folder(self.folder / "tls", self.client if has_client else None)
        return Access(read_access(folder, None).tls, credentials)


@pytest.fixture(scope="module")
def tls() -> Iterator[Tls]:
    with certificate_folder() as folder:
        authority = make_authority(folder)
        server = authority.issue("server", ["127.0.0.1"])
        client = authority.issue("client")
        users = folder / "users"
        users.write_text("other:x\nchat:pass:word-1\n")
        strict_flags = [*authority.server_flags(server, wants_client=True), "-Y", str(users)]
        with (
            running_memcached(arguments=authority.server_flags(server), tls=authority.context()) as open_node,
            running_memcached(
                arguments=strict_flags, tls=authority.context(client), log_in=b"chat pass:word-1"
            ) as strict,
        ):
            yield Tls(folder, authority, client, open_node, strict)


@pytest.fixture(scope="module")
def asking() -> Iterator[Memcached]:
    """A node without TLS that asks for a user."""
    with certificate_folder() as folder:
        (folder / "users").write_text("chat:pass:word-1\n")
        (folder / "users").chmod(0o644)
        with running_memcached(arguments=["-Y", str(folder / "users")], log_in=b"chat pass:word-1") as node:
            yield node


async def _stored_at_last(pool: MemcachedPool, stored: Record) -> None:
    end = time.monotonic() + 10
    while not await pool.store(*stored):
        assert time.monotonic() < end, "the node was not tried again"
        await asyncio.sleep(0.05)


async def test_records_cross_tls_with_a_client_certificate_and_a_user(tls: Tls) -> None:
    stored = [*records(30), record(30, 12_000_000)]  # the last is above the item limit: split
    async with pool_over([tls.strict], PATIENT, tls.access()) as (pool, metrics):
        assert all(await asyncio.gather(*(pool.store(header, payload) for header, payload in stored)))
        assert await fetch_all(pool, stored) == list(range(31))
        assert await pool.probe([header.address for header, _ in records(32)]) == [True] * 31 + [False]
        assert operations(metrics, "fetch") == {"hit": 31}
    assert int(tls.strict.statistics()["auth_cmds"]) >= 1


async def test_an_idle_connection_is_used_again_and_tickets_are_not_taken_for_answers(tls: Tls) -> None:
    stored = records(3)
    async with pool_over([tls.open], PATIENT, tls.access(has_client=False)) as (pool, _):
        assert all(await store_all(pool, stored))
        connections = int(tls.open.statistics()["total_connections"])
        for _ in range(5):
            assert await fetch_all(pool, stored) == [0, 1, 2]
        assert int(tls.open.statistics()["total_connections"]) == connections + 1  # the one that asks


async def test_a_node_that_restarts_is_no_failure(tls: Tls) -> None:
    stored = records(3)
    async with pool_over([tls.open], PATIENT, tls.access(has_client=False)) as (pool, metrics):
        assert all(await store_all(pool, stored))
        tls.open.restart()
        assert await fetch_all(pool, stored) == []
        assert operations(metrics, "fetch") == {"miss": 3}


async def test_a_client_without_a_certificate_is_untrusted_and_the_node_left_alone(tls: Tls) -> None:
    async with pool_over([tls.strict], FAST, tls.access(has_client=False)) as (pool, metrics):
        assert await fetch_all(pool, records(2)) == []
        assert operations(metrics, "fetch") == {"untrusted": 2}
        assert await fetch_all(pool, records(2)) == []
        assert operations(metrics, "fetch") == {"untrusted": 2, "breaker": 2}
        assert b'pagoda_pool_node_up{node="n0"} 0.0' in metrics.exposition()


@pytest.mark.parametrize("what", ["another authority", "another host", "no TLS there", "no TLS here"])
async def test_a_peer_that_is_not_the_node_is_told_nothing(tls: Tls, asking: Memcached, what: str) -> None:
    access, nodes, expected = tls.access(), [f"127.0.0.1:{tls.open.port}"], "untrusted"
    if what == "another authority":
        folder = make_authority(tls.folder, "stranger").write_folder(tls.folder / "stranger", tls.client)
        access = Access(read_access(folder, None).tls, _GOOD)
    elif what == "another host":
        nodes = [f"localhost:{tls.open.port}"]
    elif what == "no TLS there":
        nodes = [asking.address]
    else:
        access, expected = Access(None, _GOOD), "lost"
    async with pool_over(nodes, FAST, access) as (pool, metrics):
        assert await fetch_all(pool, records(2)) == []
        assert operations(metrics, "fetch") == {expected: 2}


async def test_a_peer_silent_in_the_handshake_costs_one_deadline(tls: Tls) -> None:
    async with speaking(b"") as address, pool_over([address], FAST, tls.access()) as (pool, metrics):
        async with asyncio.timeout(10 * FAST.connect_seconds):
            assert await fetch_all(pool, records(2)) == []
        assert operations(metrics, "fetch") == {"timeout": 2}


@pytest.mark.parametrize("credentials", [None, Credentials(b"chat", b"wrong"), Credentials(b"nobody", b"pass:word-1")])
async def test_wrong_credentials_are_denied_retried_ever_more_rarely_and_never_logged(
    asking: Memcached, credentials: Credentials | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with pool_over([asking], FAST, Access(None, credentials)) as (pool, metrics):
        assert await store_all(pool, records(2)) == [False, False]
        assert operations(metrics, "store") == {"denied": 1, "breaker": 1}
        await asyncio.sleep(1.5)
        assert 1 <= operations(metrics, "ping")["denied"] <= 5  # pauses of 0.1, 0.2, 0.4, 0.4, …; without growth 15
        pool.set_access(Access(None, _GOOD))
        await _stored_at_last(pool, record(0))
    assert credentials is None or credentials.password.decode() not in caplog.text
    assert "pass:word-1" not in caplog.text
    assert "pass:word-1" not in repr(Access(None, _GOOD))


async def test_new_credentials_end_a_long_pause(asking: Memcached) -> None:
    settings = replace(FAST, max_retry_seconds=3600.0)
    async with pool_over([asking], settings, Access(None, Credentials(b"chat", b"wrong"))) as (pool, metrics):
        assert await pool.store(*record(0)) is False
        pool._nodes["n0"]._patience = 3600.0
        seen = operations(metrics, "ping").get("denied", 0)
        end = time.monotonic() + 10
        while operations(metrics, "ping").get("denied", 0) == seen:  # the pause that had begun ends, a long one begins
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        pool.set_access(Access(None, _GOOD))
        await _stored_at_last(pool, record(0))


async def test_a_node_that_asks_for_nobody_is_told_no_password() -> None:
    with running_memcached() as node:
        async with pool_over([node], PATIENT, Access(None, _GOOD)) as (pool, _):
            assert all(await store_all(pool, records(2)))
        assert node.statistics()["cmd_set"] == "2"


async def test_new_certificates_are_used_for_new_connections_and_the_pool_is_used_meanwhile(tls: Tls) -> None:
    """The nodes move to another authority; the pool's access follows, with the node list as it was."""
    with certificate_folder() as folder:
        authority = make_authority(folder, "next")
        server = authority.issue("server", ["127.0.0.1"])
        access = Access(read_access(authority.write_folder(folder / "tls"), None).tls)
        stored = records(4)
        with running_memcached(arguments=authority.server_flags(server), tls=authority.context()) as node:
            pool = MemcachedPool((PoolNode("n0", node.address),), PoolCounters(Metrics()), FAST)
            pool.set_access(tls.access())
            pool.set_namespace(NAMESPACE)
            assert await store_all(pool, stored) == [False] * 4
            pool.set_access(access)
            await _stored_at_last(pool, stored[0])
            pool.set_nodes(named(node))
            assert await fetch_all(pool, stored) == [0]
            await pool.close()
