"""The tier client beside a real sidecar: what it keeps of what it was told, and that none of its waits is for ever."""

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from pagoda_protocol.tier import LOCK_NAME
from pagoda_protocol.tier.tier_pb2_grpc import TierStub
from pagoda_sidecar import client_arena, client_connection
from pagoda_sidecar.client import TierClient, TierUnavailable, is_free
from tests.sidecar.support import (
    MEBIBYTE,
    ROOT,
    chain,
    client_of,
    identity,
    sidecar_process,
    store,
    usable,
    wait_until,
)
from tests.support.ports import free_port


def test_an_engine_knows_whether_its_pool_is_off_and_logs_each_change_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with sidecar_process() as sidecar, client_of(sidecar) as client:
        assert client.pool_off_reason == "no memcached nodes are configured"
        sidecar.kill_worker()
        wait_until(lambda: not client.attached)
        wait_until(lambda: client.attached)
        nodes = [{"name": "mc-0", "address": f"127.0.0.1:{free_port()}"}]
        (sidecar.folder / "settings" / "pool-nodes.json").write_text(json.dumps({"nodes": nodes}))
        wait_until(lambda: client.pool_off_reason == "")
        said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("pool: ")]
    assert said == ["pool: off: no memcached nodes are configured", "pool: on"]


def test_a_pod_without_a_ram_tier_says_so_once_and_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with sidecar_process(ram_bytes=0) as sidecar:
        client = TierClient(sidecar.volume, identity())
        try:
            wait_until(lambda: client.attached)
            assert not client.has_ram
            for _ in range(3):
                assert client.lookup(chain(1), 1.0) == []
                with pytest.raises(TierUnavailable):
                    store(client, chain(1))
            assert client.attached
        finally:
            client.close()
    said = [record for record in caplog.records if "RAM tier" in record.getMessage()]
    assert [record.getMessage() for record in said] == [
        "tiers: RAM tier off: the RAM tier is switched off (ram size 0)"
    ]
    assert said[0].levelno == logging.INFO


def test_what_a_hand_over_leaves_behind_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with sidecar_process(nodes=[("nobody", free_port())]) as sidecar, client_of(sidecar) as client:
        store(client, chain(3))
        assert client.hand_over(10 * MEBIBYTE, 1.0) == 0
    assert "hand-over ended early num_blocks=0 num_left=3" in caplog.messages


def test_an_attach_thread_that_hangs_keeps_no_close_waiting_and_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_connection, "CLOSE_SECONDS", 0.1)
    has_begun, may_end = threading.Event(), threading.Event()

    def hang(self: object) -> None:
        has_begun.set()
        assert may_end.wait(20)

    monkeypatch.setattr(client_connection.Connection, "_live_once", hang)
    client = TierClient(tmp_path, identity())
    assert has_begun.wait(20)
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 5
    assert caplog.messages == ["the attach thread does not end"]
    assert not is_free(tmp_path / LOCK_NAME), "it might map the arena yet"
    may_end.set()
    wait_until(lambda: not client._connection._thread.is_alive())
    client.close()
    assert is_free(tmp_path / LOCK_NAME)


def test_a_copy_that_does_not_end_keeps_the_mapping_and_the_lock_but_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_arena, "SETTLE_DOWN_SECONDS", 0.1)
    has_begun, may_end = threading.Event(), threading.Event()
    seen: list[bytes] = []

    def sink(position: int, view: memoryview) -> None:
        has_begun.set()
        assert may_end.wait(20)
        seen.append(bytes(view))

    with sidecar_process() as sidecar, client_of(sidecar) as client:
        store(client, chain(1))
        load = threading.Thread(target=lambda: client.load(ROOT, chain(1), 0, 1, sink, 20.0, lambda: False))
        load.start()
        assert has_begun.wait(20)
        sidecar.kill_worker()  # to attach anew, the client must know that nobody touches the former arena
        wait_until(lambda: client.off_reason == "arena: a copy has not ended in 0.1 s")
        client.close()
        assert caplog.messages[-1] == "the arena stays mapped: a copy has not ended in 0.1 s"
        assert not is_free(sidecar.volume / LOCK_NAME)
        may_end.set()
        load.join(20)
        assert len(seen) == 1
        client.close()
        assert is_free(sidecar.volume / LOCK_NAME)


def test_a_copy_that_ends_late_lets_the_engine_attach_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_arena, "SETTLE_DOWN_SECONDS", 0.1)
    with sidecar_process() as sidecar, client_of(sidecar) as client:
        with client._connection.arena.borrowed():
            sidecar.kill_worker()
            wait_until(lambda: "a copy has not ended" in client.off_reason)
        wait_until(lambda: usable(client))
        assert store(client, chain(1)).stored == 1


@pytest.mark.parametrize("when", ["before", "in the middle"])
def test_a_channel_that_is_closed_under_a_call_is_a_sidecar_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """grpc has a ValueError for it, in two wordings; the second comes when the close happens inside of its call."""
    with sidecar_process() as sidecar, client_of(sidecar) as client:
        bug = ValueError("a caller's own")
        with pytest.raises(ValueError, match="own"), client._connection.call(1.0):
            raise bug
        if when == "before":
            channel = grpc.insecure_channel("unix:/nowhere")
            stub = TierStub(channel)
            channel.close()
            monkeypatch.setattr(client._connection, "_stub", stub)
        else:
            error = ValueError("Cannot invoke RPC: Channel closed!")
            monkeypatch.setattr(client._connection, "_stub", SimpleNamespace(Lookup=raising(error)))
        with pytest.raises(TierUnavailable) as gone:
            client.lookup(chain(1), 1.0)
        assert gone.value.reason == "no_sidecar"


def test_impatient_callers_make_nobody_doubt_a_sidecar_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with sidecar_process() as sidecar, client_of(sidecar) as client:
        store(client, chain(1))
        stub = client._connection._stub
        for _ in range(20):
            monkeypatch.setattr(client._connection, "_stub", SimpleNamespace(Lookup=raising(LateError())))
            with pytest.raises(TierUnavailable) as late:
                client.lookup(chain(1), 0.05)
            assert late.value.reason == "deadline"
            monkeypatch.setattr(client._connection, "_stub", stub)
            assert client.attached
            assert store(client, chain(1)).present == 1
        wait_until(lambda: not client._connection._suspicion, what="an answer to a ping")
        assert client.attached


class LateError(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.DEADLINE_EXCEEDED

    def details(self) -> str:
        return "late"


def raising(error: Exception) -> Callable[..., object]:
    def call(*arguments: object, **named: object) -> object:
        raise error

    return call


def test_a_settlement_that_meets_a_ping_is_brought_although_nobody_calls_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ping had left without it and its own call was refused by the doubt: at idle nothing else would follow."""
    with sidecar_process() as sidecar, client_of(sidecar) as client:
        connection = client._connection
        settle_all = connection._settle_all
        late = iter(["late"])

        def ping(*arguments: object, is_ping: bool = False) -> None:
            settle_all(*arguments, is_ping=is_ping)  # type: ignore[arg-type]
            if is_ping:
                for lease_id in late:
                    connection.settle(lease_id, set(), 1.0)

        monkeypatch.setattr(connection, "_settle_all", ping)
        connection.doubt("a test doubts", connection._attachment)
        wait_until(lambda: client.attached and not connection._unsettled and next(late, None) is None)
