"""The tier client beside a real sidecar: what it keeps of what it was told."""

import json
import logging

import pytest

from tests.sidecar.support import MEBIBYTE, chain, client_of, free_port, sidecar_process, store, wait_until


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


def test_what_a_hand_over_leaves_behind_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with sidecar_process(nodes=[("nobody", free_port())]) as sidecar, client_of(sidecar) as client:
        store(client, chain(3))
        assert client.hand_over(10 * MEBIBYTE, 1.0) == 0
    assert "hand-over ended early num_blocks=0 num_left=3" in caplog.messages
