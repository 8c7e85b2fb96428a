"""What a sidecar says of itself to who looks at a thousand of them: small, true, and cheap."""

import asyncio
import json
import random
import secrets
import time
from typing import Any

from pagoda_protocol.marks import nodes_mark
from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.arena.layout import StoredDigest
from pagoda_sidecar.client import LoadReport
from pagoda_sidecar.counters import Counters
from pagoda_sidecar.digest_table import HALF_LIFE_SECONDS, decayed
from pagoda_sidecar.hints import Row
from pagoda_sidecar.sidecar import Sidecar
from pagoda_sidecar.summary import MAX_BYTES, MAX_HITS, Summary, hottest
from tests.sidecar.support import FakePool, client_of, memcached, sidecar_process, wait_until
from tests.support.ports import free_port

NOW = 1_800_000_000


def rows(number: int, seed: int = 0) -> dict[bytes, StoredDigest]:
    """Digests with all kinds of heats and times."""
    chance = random.Random(seed)
    table = {}
    for _ in range(number):
        digest = chance.randbytes(16)
        last_use = NOW - chance.randrange(7200)
        table[digest] = StoredDigest(
            digest, chance.randbytes(32), chance.randrange(10_000), chance.uniform(1, 99), last_use
        )
    return table


def published(table: dict[bytes, StoredDigest]) -> dict[bytes, Row]:
    return {digest: Row(row.tokens, "ram", row.heat) for digest, row in table.items()}


def test_the_hottest_rows_are_those_whose_heat_by_now_is_highest() -> None:
    table = rows(5000)
    hits = hottest(published(table), table.get, NOW)
    expected = sorted((decayed(row, NOW) for row in table.values()), reverse=True)[:MAX_HITS]
    assert [hit[3] for hit in hits] == [round(heat, 2) for heat in expected]
    digest, tokens, tier, _ = hits[0]
    assert (tokens, tier) == (table[bytes.fromhex(digest)].tokens, "ram")


def test_an_old_use_counts_less_than_a_new_one() -> None:
    old = StoredDigest(b"o" * 16, bytes(32), 1, 4.0, NOW - int(3 * HALF_LIFE_SECONDS))
    new = StoredDigest(b"n" * 16, bytes(32), 1, 1.0, NOW)
    table = {row.digest: row for row in (old, new)}
    assert [(hit[0], hit[3]) for hit in hottest(published(table), table.get, NOW)] == [
        (new.digest.hex(), 1.0),
        (old.digest.hex(), 0.5),
    ]


def test_a_row_that_was_evicted_meanwhile_is_left_out() -> None:
    table = rows(10)
    shown = published(table)
    table.popitem()
    assert len(hottest(shown, table.get, NOW)) == 9


class Crowd(FakePool):
    """A pool of many nodes, all of them down."""

    async def look(self) -> dict[str, str]:
        return {f"{'node' * 50}-{number}": "refused: " + "x" * 500 for number in range(128)}


async def summary_of(sidecar: Sidecar) -> str:
    return await Summary(sidecar).text()


async def test_a_summary_is_small_whatever_there_is_to_say(tmp_path) -> None:
    sidecar = Sidecar(tmp_path, 0, Crowd(), Counters(Metrics()))
    sidecar.off_reason = "bad " * 1000
    for _ in range(1000):
        address = secrets.token_bytes(32)
        sidecar.hints.set_device([address], [])
        sidecar.hints.record(secrets.token_bytes(16), 2**31, address)
    sidecar.hints.flush()
    text = await summary_of(sidecar)
    assert len(text) <= MAX_BYTES
    document = json.loads(text)
    assert len(document["hits"]) == MAX_HITS
    assert 0 < len(document["tiers"]["pool"]["nodes"]) < 128
    await sidecar.close()


async def test_a_scrape_of_a_full_table_holds_up_the_control_loop_for_moments_only(tmp_path) -> None:
    sidecar = Sidecar(tmp_path, 0, FakePool(), Counters(Metrics()))
    sidecar.hints._published = published(table := rows(65_536))
    sidecar.table._rows = table
    summary = Summary(sidecar)
    longest, is_over = 0.0, False

    async def watch() -> None:
        nonlocal longest
        while not is_over:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    await summary.text()
    first = time.perf_counter() - began
    began = time.perf_counter()
    await summary.text()
    again = time.perf_counter() - began
    is_over = True
    await watching
    assert longest < 0.05, "of the loop's own time"
    assert again < max(0.05, first), "what takes long is kept"
    await sidecar.close()


def test_the_summary_of_a_running_sidecar_names_its_tiers_and_what_is_wrong_with_nodes() -> None:
    with memcached() as port, sidecar_process(nodes=[("mc-0", free_port()), ("mc-1", port)]) as sidecar:
        with client_of(sidecar) as client:
            wait_until(lambda: not client.pool_off_reason, what="the pool")
            summary = json.loads(sidecar.get("/v1/summary"))
        assert set(summary) == {
            "version", "epochs", "hit_ratio", "namespace", "block_tokens", "protocol", "tiers", "hits", "state",
        }  # fmt: skip
        assert (summary["version"], summary["block_tokens"], summary["namespace"]) == (1, 4, sidecar.namespace.hex())
        assert summary["epochs"]["device"] is not None
        assert summary["epochs"]["disk"] is None
        assert summary["tiers"]["ram"] == {"state": "on", "reason": ""}
        assert summary["tiers"]["disk"] == {"state": "none", "reason": ""}
        assert summary["tiers"]["pool"]["state"] == "on"
        assert summary["tiers"]["pool"]["list"] == nodes_mark(["mc-1", "mc-0"])
        nodes = summary["tiers"]["pool"]["nodes"]
        assert nodes["mc-1"] == {"state": "up", "reason": ""}
        assert nodes["mc-0"]["state"] == "down", "nobody has asked it for a record, and it is known all the same"
        assert nodes["mc-0"]["reason"].startswith("refused")
        wait_until(lambda: json.loads(sidecar.get("/v1/summary"))["namespace"] is None, what="the end of the engine")


def test_the_state_is_what_the_engine_was_told_last() -> None:
    with memcached() as port, sidecar_process(nodes=[("mc-0", port)]) as sidecar:

        def told() -> dict[str, Any]:
            document: dict[str, Any] = json.loads(sidecar.get("/v1/summary"))
            return document

        with client_of(sidecar) as client:
            wait_until(lambda: not client.pool_off_reason and client.state == told()["state"], what="the pool")
            first, first_list = client.state, told()["tiers"]["pool"]["list"]
            assert len(first) == 16
            nodes = {"nodes": [{"name": "mc-1", "address": f"127.0.0.1:{port}"}]}
            (sidecar.folder / "settings" / "pool-nodes.json").write_text(json.dumps(nodes))
            wait_until(lambda: told()["tiers"]["pool"]["list"] == nodes_mark(["mc-1"]), what="the other list")
            wait_until(lambda: client.state == told()["state"] != first, what="another state")
            assert first_list == nodes_mark(["mc-0"])
            states = {first, client.state}
            for name in ("mc-0", "mc-1"):  # what comes again is another state all the same
                (sidecar.folder / "settings" / "pool-nodes.json").write_text(json.dumps(
                    {"nodes": [{"name": name, "address": f"127.0.0.1:{port}"}]}
                ))  # fmt: skip
                wait_until(lambda name=name: told()["tiers"]["pool"]["list"] == nodes_mark([name]), what="the list")
                wait_until(lambda: client.state == told()["state"] not in states, what="another state")
                states.add(client.state)
        wait_until(lambda: told()["state"] is None, what="the end of the engine")
        with client_of(sidecar) as client:
            wait_until(lambda: client.state != "", what="another attachment")
            assert client.state == told()["state"] != first


def test_the_hit_ratio_is_what_the_engine_said_last() -> None:
    with sidecar_process() as sidecar, client_of(sidecar) as client:
        for ratio in (0.25, None):
            client.report([], [], [], [], LoadReport(0, 0, 0.0, 0.0, 0.0, hit_ratio=ratio), 2.0)
            assert json.loads(sidecar.get("/v1/summary"))["hit_ratio"] == ratio
