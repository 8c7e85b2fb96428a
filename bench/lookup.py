"""How long a Lookup takes while the tiers work at full speed: the real sidecar, a real memcached, p50 and p99.

One thread stores blocks as fast as the sidecar takes them and reports each chain as used twice, so that all of it is
also pushed to the pool. A process of its own asks for chains of 128 blocks: one that lies in RAM, and others that
nobody has (each a question to the pool). Idle and storing rounds take turns.
"""

import multiprocessing
import os
import secrets
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from bench.report import Goal, Result
from pagoda_protocol.addresses import ADDRESS_BYTES
from pagoda_protocol.tier import SOCKET_NAME
from pagoda_protocol.tier import tier_pb2 as pb
from pagoda_protocol.tier.tier_pb2_grpc import TierStub
from pagoda_sidecar.client import BlockRecord, TierClient
from tests.sidecar.support import ROOT, SidecarProcess, client_of, identity, sidecar_process
from tests.support.memcached import running_memcached

GOAL_SECONDS = 0.002
PAYLOAD_BYTES = 368_640  # one block of SmolLM2-135M in bf16
CHAIN_BLOCKS = 128
STORED_AT_ONCE = 16
PAUSE_SECONDS = 0.004  # between lookups: an engine asks once per request
SETTLE_SECONDS = 0.3
KINDS = ("in ram", "nowhere")


def run(quick: bool, folder: Path) -> Result:
    """Measure; quick: a tenth of it."""
    num_rounds, num_lookups = (4, 40) if quick else (16, 100)
    times: dict[tuple[str, str], list[float]] = {(arm, kind): [] for arm in ("idle", "storing") for kind in KINDS}
    with (
        running_memcached(memory_mib=512, item_limit="8m", threads=2) as node,
        sidecar_process(ram_bytes=1 << 30, nodes=[("bench", node.port)]) as sidecar,
        client_of(sidecar, identity(payload_bytes=PAYLOAD_BYTES)) as client,
        _looker(sidecar.volume, client) as looker,
    ):
        storer = _Storer(client)
        for round_index in range(num_rounds):
            for arm in ("idle", "storing") if round_index % 2 == 0 else ("storing", "idle"):
                with storer.storing(arm == "storing"):
                    for kind in KINDS:
                        looker.send((kind, storer.hot, num_lookups))
                        times[arm, kind] += looker.recv()
        gigabytes = storer.num_stored * PAYLOAD_BYTES / storer.seconds / 1e9
        pushed = _pushed(sidecar) * PAYLOAD_BYTES / storer.seconds / 1e9
        looker.send(None)
    rows = [_row(arm, kind, its) for (arm, kind), its in times.items()]
    both = [seconds for (arm, _), its in times.items() if arm == "storing" for seconds in its]
    note = f"stored {gigabytes:.2f} GB/s into RAM, {pushed:.2f} GB/s of it into the pool, while looked up"
    goal = Goal("Lookup p99 while storing, ms", _p99(both) * 1e3, GOAL_SECONDS * 1e3, at_least=False)
    return Result("lookup", rows, [goal], ("arm", "p99_ms"), [note])


class _Storer:
    """Stores fresh chains in a thread of this process while `storing`; keeps one chain hot."""

    def __init__(self, client: TierClient) -> None:
        self._client = client
        self._data = os.urandom(PAYLOAD_BYTES)
        self.num_stored = 0
        self.seconds = 0.0
        self.hot = [secrets.token_bytes(ADDRESS_BYTES) for _ in range(CHAIN_BLOCKS)]
        self._store(self.hot)

    @contextmanager
    def storing(self, is_wanted: bool) -> Iterator[None]:
        """Store from now on until the context ends, if wanted."""
        if not is_wanted:
            time.sleep(SETTLE_SECONDS)  # what is queued for the pool
            yield
            return
        is_over = threading.Event()
        thread = threading.Thread(target=self._work, args=(is_over,))
        thread.start()
        time.sleep(SETTLE_SECONDS)
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _work(self, is_over: threading.Event) -> None:
        start = time.perf_counter()
        while not is_over.is_set():
            chain = [secrets.token_bytes(ADDRESS_BYTES) for _ in range(STORED_AT_ONCE)]
            self.num_stored += self._store(chain)
            self._client.report([], [], [], [chain[-1], chain[-1], self.hot[-1]], None, 5.0)
        self.seconds += time.perf_counter() - start

    def _store(self, chain: list[bytes]) -> int:
        parents = [ROOT, *chain]
        records = [BlockRecord(address, parents[i], i, 16, 7) for i, address in enumerate(chain)]
        return self._client.store(records, self._fill, 10.0).stored

    def _fill(self, _: int, view: memoryview) -> None:
        view[:] = self._data


@contextmanager
def _looker(volume: Path, client: TierClient) -> Iterator[Connection]:
    """Run the asking process; yield the end of a pipe: send (kind, hot chain, how many), receive seconds of each."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    with client._connection.call(1.0) as (_, attachment):  # a second process cannot attach: it borrows ours
        process = context.Process(target=_look, args=(volume / SOCKET_NAME, attachment, its), daemon=True)
    process.start()
    its.close()  # so that we hear of its end
    try:
        yield ours
    finally:
        process.terminate()
        process.join()


def _look(socket: Path, attachment: bytes, pipe: Connection) -> None:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = TierStub(channel)
        while (wanted := pipe.recv()) is not None:
            kind, hot, count = wanted
            pipe.send([_one(stub, attachment, hot if kind == "in ram" else None) for _ in range(count)])


def _one(stub: TierStub, attachment: bytes, chain: list[bytes] | None) -> float:
    time.sleep(PAUSE_SECONDS)
    addresses = chain or [secrets.token_bytes(ADDRESS_BYTES) for _ in range(CHAIN_BLOCKS)]
    request = pb.LookupRequest(attachment=attachment, addresses=addresses)
    start = time.perf_counter()
    reply = stub.Lookup(request, timeout=5.0)
    elapsed = time.perf_counter() - start
    assert bool(reply.parts) == (chain is not None), "not what lies there"
    return elapsed


def _pushed(sidecar: SidecarProcess) -> float:
    return sidecar.metric('pagoda_pool_operations_total{node="bench",operation="store",outcome="stored"}')


def _row(arm: str, kind: str, seconds: list[float]) -> dict[str, Any]:
    return {
        "arm": f"{arm}, chain {kind}",
        "n": len(seconds),
        "p50_ms": statistics.median(seconds) * 1e3,
        "p99_ms": _p99(seconds) * 1e3,
        "max_ms": max(seconds) * 1e3,
    }


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]
