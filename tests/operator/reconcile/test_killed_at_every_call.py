"""The operator dies at any of its calls, another one starts, and comes to the same state as if nothing were.

On a real API server it is told in `e2e/operator/`.
"""

import json
from typing import Any

import pytest

from pagoda_operator import names
from pagoda_operator.kube.api import Api
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.reconcile import Reconciler
from pagoda_runtime.metrics import Metrics
from tests.operator.children.pools import IMAGES, PEERS
from tests.operator.reconcile.story import NAMESPACE, POOL, SPEC, Clock, Cluster, Fleet, Json
from tests.support.kube_faults import Dying, Killed


def without_times(cluster: Cluster) -> Json:
    """Return all objects but for what differs from run to run: uids, versions, random keys, times."""
    made = {}
    for key, found in cluster.objects.items():
        if key[1] == "events":
            continue
        text = json.dumps({k: v for k, v in found.items() if k != "data" or key[1] != "secrets"})
        uid = cluster.named("inferencepools", POOL)["metadata"]["uid"]
        copied = json.loads(text.replace(uid, "UID").replace(uid[:8], "UID"))
        for field in ("uid", "resourceVersion"):
            copied["metadata"].pop(field)
        copied["metadata"].get("annotations", {}).pop(names.APPLIED_ANNOTATION, None)
        template = copied.get("spec", {}).get("template", {}).get("metadata", copied["metadata"])
        template.get("annotations", {}).pop("pagoda-kv.io/template", None)
        made[str(key).replace(uid[:8], "UID")] = copied
    return made


async def brought_about(cluster: Cluster, *transports: Any) -> None:
    """Run one operator after the other, each until it dies or all is done."""
    for transport in (*transports, cluster):
        reconciler = Reconciler(Api(transport), IMAGES, PEERS, Fleet(), PoolGauges(Metrics()), Clock())
        try:
            while await reconciler.reconcile(NAMESPACE, POOL) is not None:
                cluster.run_controllers()
        except Killed:
            continue


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_an_operator_that_dies_at_any_call_is_followed_by_one_that_gets_to_the_same_state(after: bool) -> None:
    smooth = Cluster()
    smooth.pool(SPEC)
    counter = Dying(smooth)
    await brought_about(smooth, counter)
    assert counter.num_requests > 40
    for at in range(counter.num_requests):
        cluster = Cluster()
        cluster.pool(SPEC)
        await brought_about(cluster, Dying(cluster, at=at, after=after))
        assert without_times(cluster) == without_times(smooth), f"killed at call {at}"
