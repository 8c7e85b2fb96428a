"""An engine's proof over a real sidecar, a real disk and a real memcached that stops answering."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pagoda_engine.serving import proof
from pagoda_engine.serving.proof import Prover, Scope
from pagoda_protocol import metrics as names
from pagoda_protocol.tenants import ANONYMOUS_SCOPE, PROOF_SCOPE, SHARED_SCOPE, tenant_root
from pagoda_runtime.metrics import Metrics
from tests.engine.serving.test_proof import OneToken
from tests.sidecar.support import (
    BLOCK_TOKENS,
    MEBIBYTE,
    NAMESPACE,
    PAYLOAD_BYTES,
    client_of,
    memcached,
    sidecar_process,
    wait_until,
)
from tests.support.faults.proxy import running_proxy

SECRET = b"s" * 32
SCOPE = Scope(tenant_root(SECRET, NAMESPACE, PROOF_SCOPE), 9, BLOCK_TOKENS, PAYLOAD_BYTES)
ALL_OK = {"ram": "ok", "disk": "ok", "pool": "ok"}


def is_now(prover: Prover, **results: str) -> Callable[[], bool]:
    return lambda: all(prover.describe()["tiers"][tier].startswith(result) for tier, result in results.items())


def test_a_black_holed_pool_delays_an_engine_by_less_than_two_seconds_and_is_proven_when_it_answers() -> None:
    disk = Path(tempfile.mkdtemp(prefix="pagoda-test-"))
    flags = {"--disk-dir": disk, "--disk-bytes": 8 * MEBIBYTE}
    with (
        memcached() as port,
        running_proxy("127.0.0.1", port) as node,
        sidecar_process(nodes=[("mc-0", node.port)], flags=flags) as sidecar,
        client_of(sidecar) as client,
    ):
        wait_until(lambda: not client.disk_off_reason, what="the disk tier")
        proofs = Metrics().counter(names.TIER_PROOFS, "Proofs.", ("tier", "result"))
        prover = Prover(OneToken(), client, SCOPE, proofs)
        node.black_hole(True)
        began = time.monotonic()
        prover.prove()
        assert time.monotonic() - began < proof.PROOF_SECONDS
        assert prover.describe()["tiers"] == {"ram": "ok", "disk": "ok", "pool": "failed: not stored: timeout"}
        prover.watch()
        try:
            node.black_hole(False)
            wait_until(is_now(prover, **ALL_OK), what="the pool")
            sidecar.kill_worker()
            wait_until(is_now(prover, ram="failed", disk="failed", pool="failed"), what="the end of the worker")
            wait_until(is_now(prover, **ALL_OK), what="the next worker")
            (sidecar.folder / "settings" / "pool-nodes.json").write_text('{"nodes": []}')
            wait_until(is_now(prover, ram="ok", disk="ok", pool="none"), what="a pool that is gone")
        finally:
            prover.stop()
    shutil.rmtree(disk)


def test_no_caller_has_the_scope_of_a_proof() -> None:
    others = [ANONYMOUS_SCOPE, SHARED_SCOPE, "tenant:proof", "tenant:"]
    assert SCOPE.root not in [tenant_root(SECRET, NAMESPACE, scope) for scope in others]
