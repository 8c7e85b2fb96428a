"""The pool of a real sidecar process: nodes that move, certificates and users, seen from an engine's client."""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pagoda_sidecar.client import TierClient, TierUnavailable
from tests.sidecar.support import (
    MEBIBYTE,
    SidecarProcess,
    chain,
    client_of,
    identity,
    load,
    sidecar_process,
    store,
    usable,
    wait_until,
)
from tests.support.certificates import certificate_folder, make_authority, needs_openssl
from tests.support.memcached import needs_memcached, running_memcached

pytestmark = needs_memcached

_PAYLOAD_BYTES = 200_000
_CHAIN_BLOCKS = 4
_NODE_MEBIBYTES = 16
_STORED = 'pagoda_pool_operations_total{node="n",operation="store",outcome="stored"}'
_OUTAGE_SECONDS = float(os.environ.get("PAGODA_OUTAGE_SECONDS", "3"))


def _set_nodes(sidecar: SidecarProcess, address: str | None) -> None:
    """Replace pool-nodes.json as a mounted one is replaced: as a whole."""
    path = sidecar.folder / "settings" / "pool-nodes.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"nodes": [] if address is None else [{"name": "n", "address": address}]}))
    new.replace(path)


def _seen_twice(client: TierClient, addresses: Sequence[bytes]) -> None:
    assert store(client, addresses).stored == len(addresses)
    client.report([], [], [], [addresses[-1]] * 2, None, 5.0)


@contextlib.contextmanager
def _pod(
    nodes: str | None, ram_bytes: int = 8 * MEBIBYTE, **flags: object
) -> Iterator[tuple[SidecarProcess, TierClient]]:
    with sidecar_process(ram_bytes) as sidecar:
        _set_nodes(sidecar, nodes)
        sidecar.end()
        sidecar.flags = {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
        sidecar.start()
        with client_of(sidecar, identity(payload_bytes=_PAYLOAD_BYTES)) as client:
            yield sidecar, client


def _tiers(client: TierClient, addresses: Sequence[bytes]) -> list[str]:
    return [part.tier for part in client.lookup(addresses, 5.0) for _ in range(part.count)]


def _load_from_pool(client: TierClient, seeds: range) -> None:
    """Load the youngest chain that has left RAM."""
    chains = [chain(_CHAIN_BLOCKS, seed) for seed in reversed(seeds)]
    found: list[list[bytes]] = []

    def is_there() -> bool:  # not at once where the node has just been too slow for its deadline
        found[:] = [one for one in chains if _tiers(client, one) == ["pool"] * _CHAIN_BLOCKS]
        return bool(found)

    wait_until(is_there, what="a chain that only the pool has")
    assert load(client, found[0]).sources == ["pool"] * _CHAIN_BLOCKS


@pytest.mark.timeout(_OUTAGE_SECONDS + 300)
def test_k5_a_pool_filled_ten_times_over_and_killed_comes_back_elsewhere_and_no_call_fails() -> None:
    """Gone for three seconds, or as long as PAGODA_OUTAGE_SECONDS says; K5 tells of 60.

    A chain that is in use all the time was pushed to the node's first place, and must be in its last.
    """
    hot = chain(_CHAIN_BLOCKS, 30_000)
    with (
        running_memcached(memory_mib=_NODE_MEBIBYTES, item_limit="1m") as node,
        _pod(node.address) as (sidecar, client),
    ):
        _seen_twice(client, hot)
        wait_until(lambda: sidecar.metric(_STORED) >= _CHAIN_BLOCKS, what="the first push")
        num_chains = 10 * _NODE_MEBIBYTES * MEBIBYTE // (_PAYLOAD_BYTES * _CHAIN_BLOCKS) + 1
        for seed in range(num_chains):
            _seen_twice(client, chain(_CHAIN_BLOCKS, seed))
            assert load(client, hot).sources == ["ram"] * _CHAIN_BLOCKS
            wait_until(lambda want=(seed + 1) * _CHAIN_BLOCKS: sidecar.metric(_STORED) >= want, what="a push")
        assert int(node.statistics()["evictions"]) > 0
        _load_from_pool(client, range(num_chains))
        node.kill()
        end, seed = time.monotonic() + _OUTAGE_SECONDS, 10_000
        while time.monotonic() < end:
            _seen_twice(client, chain(_CHAIN_BLOCKS, seed))
            assert _tiers(client, chain(_CHAIN_BLOCKS, seed)) == ["ram"] * _CHAIN_BLOCKS
            assert load(client, hot).sources == ["ram"] * _CHAIN_BLOCKS
            assert len(load(client, chain(_CHAIN_BLOCKS, 3)).sources) == 0
            seed += 1
        assert sidecar.metric('pagoda_pool_node_up{node="n"}') == 0
        node.move()
        _set_nodes(sidecar, node.address)
        wait_until(lambda: "pool nodes: n" in sidecar.log.read_text().split("left alone")[-1], what="the new list")
        assert load(client, hot).sources == ["ram"] * _CHAIN_BLOCKS
        with _pod(node.address) as (_, other):
            wait_until(lambda: _tiers(other, hot) == ["pool"] * _CHAIN_BLOCKS, what="the old chain in the new node")
            assert load(other, hot).sources == ["pool"] * _CHAIN_BLOCKS
        before = sidecar.metric(_STORED)
        for seed in range(20_000, 20_014):
            _seen_twice(client, chain(_CHAIN_BLOCKS, seed))
        wait_until(lambda: sidecar.metric(_STORED) >= before + 14 * _CHAIN_BLOCKS, what="pushes to the new place")
        _load_from_pool(client, range(20_000, 20_014))
        assert sidecar.metric('pagoda_pool_node_up{node="n"}') == 1
        assert sidecar.metric("pagoda_worker_restarts_total") == 0


@needs_openssl
def test_blocks_travel_between_pods_over_tls_with_a_client_certificate_and_a_user(tmp_path: Path) -> None:
    password = secrets.token_urlsafe(24)
    with certificate_folder() as folder:
        authority = make_authority(folder)
        server, client_certificate = authority.issue("server", ["127.0.0.1"]), authority.issue("client")
        (folder / "users").write_text(f"chat:{password}\n")
        auth = tmp_path / "auth"
        auth.mkdir()
        (auth / "username").write_text("chat")
        tls = authority.write_folder(tmp_path / "tls", client_certificate)
        flags = [*authority.server_flags(server, wants_client=True), "-Y", str(folder / "users")]
        context = authority.context(client_certificate)
        with (
            running_memcached(arguments=flags, tls=context, log_in=f"chat {password}".encode()) as node,
            _pod(node.address, pool_tls_dir=tls, pool_auth_dir=auth) as (one, first),
        ):
            assert first.pool_off_reason == f"{auth / 'password'}: cannot be read: No such file or directory"
            (auth / "password").write_text("not-that")
            wait_until(lambda: first.pool_off_reason == "", what="the pool to be on")
            addresses = chain(_CHAIN_BLOCKS)
            _seen_twice(first, addresses)
            wait_until(lambda: "left alone" in one.log.read_text(), what="the node's denial")
            assert one.metric('pagoda_pool_operations_total{node="n",operation="probe",outcome="denied"}') >= 1
            (auth / "password").write_text(password)

            def pushed() -> bool:
                first.report([], [], [], [addresses[-1]], None, 5.0)
                return one.metric(_STORED) >= _CHAIN_BLOCKS

            wait_until(pushed, what="a push with the right password")
            with _pod(node.address, pool_tls_dir=tls, pool_auth_dir=auth) as (_, second):
                assert load(second, addresses).sources == ["pool"] * _CHAIN_BLOCKS
            assert password not in one.log.read_text()
            assert "not-that" not in one.log.read_text()


def test_a_node_list_that_becomes_empty_switches_the_pool_off_and_a_filled_one_on() -> None:
    with running_memcached() as node, _pod(None) as (sidecar, client):
        assert client.pool_off_reason == "no memcached nodes are configured"
        _set_nodes(sidecar, node.address)
        wait_until(lambda: client.pool_off_reason == "", what="the pool to be on")
        _seen_twice(client, chain(_CHAIN_BLOCKS))
        wait_until(lambda: sidecar.metric(_STORED) == _CHAIN_BLOCKS, what="a push")
        _set_nodes(sidecar, None)
        wait_until(lambda: client.pool_off_reason != "", what="the pool to be off")
        with contextlib.suppress(TierUnavailable):
            assert _tiers(client, [b"x" * 32]) == []
        assert usable(client)
