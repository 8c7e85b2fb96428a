"""What a person sees of InferencePools through kubectl: columns, names, scale, explanations."""

import json
import re

import pytest

from crds.schema import spec_fields
from e2e.cluster.handle import Cluster, KubectlError
from e2e.crd.pools import RESOURCE, Pools
from tests.protocol.pool.manifests import changed, minimal

CONDITION = {"lastTransitionTime": "2026-11-30T06:00:00Z", "observedGeneration": 1}


@pytest.fixture(scope="module")
def shown(pools: Pools) -> Pools:
    """The pools, one of which tells of itself as the operator writes it."""
    pools.create(changed("spec replicas", 3, minimal("shown")))
    pools.patch_status(
        "shown",
        {
            "observedGeneration": 1,
            "replicas": 3,
            "desiredReplicas": 3,
            "updatedReplicas": 2,
            "readyReplicas": 1,
            "selector": "pagoda-kv.io/pool=shown,pagoda-kv.io/part=engine",
            "model": "llama",
            "cache": {"hitRate": "81%"},
            "conditions": [
                CONDITION | {"type": "Ready", "status": "False", "reason": "RollingOut", "message": "Two are new."},
                CONDITION | {"type": "Progressing", "status": "True", "reason": "NewPods", "message": "One is left."},
            ],
        },
    )
    return pools


def get(cluster: Cluster, pools: Pools, *arguments: str) -> list[list[str]]:
    """The words of each line that `kubectl get` prints."""
    return [line.split() for line in cluster.kubectl("get", *arguments, "-n", pools.namespace).splitlines()]


def test_the_columns_tell_what_is_ready_and_how_the_cache_does(knowing: Cluster, shown: Pools) -> None:
    [head, row] = get(knowing, shown, RESOURCE, "shown")
    assert head == ["NAME", "READY", "DESIRED", "UPDATED", "HIT", "MODEL", "AGE"]
    assert row[:-1] == ["shown", "1", "3", "2", "81%", "llama"]


def test_the_wide_columns_say_why(knowing: Cluster, shown: Pools) -> None:
    [head, row] = get(knowing, shown, RESOURCE, "shown", "-o", "wide")
    assert (head[-1], row[-1]) == ("REASON", "RollingOut")


def test_the_short_name_and_the_category_find_pools(knowing: Cluster, shown: Pools) -> None:
    names = [get(knowing, shown, word, "-o", "name") for word in (RESOURCE, "pgp", "pagoda")]
    assert names[0] == names[1] == names[2]
    assert ["inferencepool.pagoda-kv.io/shown"] in names[0]


def test_all_does_not_mean_pools_so_that_deleting_all_spares_them(knowing: Cluster, shown: Pools) -> None:
    assert not any("inferencepool" in word for line in get(knowing, shown, "all", "-o", "name") for word in line)


def test_scale_reads_and_writes_replicas_and_hands_autoscalers_the_selector(knowing: Cluster, shown: Pools) -> None:
    path = f"/apis/pagoda-kv.io/v1alpha1/namespaces/{shown.namespace}/inferencepools/shown/scale"
    scale = json.loads(knowing.kubectl("get", "--raw", path))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 3, "selector": "pagoda-kv.io/pool=shown,pagoda-kv.io/part=engine"}
    knowing.kubectl("scale", f"{RESOURCE}/shown", "--replicas=5", "-n", shown.namespace)
    assert get(knowing, shown, RESOURCE, "shown", "-o", "jsonpath={.spec.replicas}") == [["5"]]


def test_scale_stays_within_bounds(knowing: Cluster, shown: Pools) -> None:
    with pytest.raises(KubectlError, match=r"spec\.replicas"):
        knowing.kubectl("scale", f"{RESOURCE}/shown", "--replicas=0", "-n", shown.namespace)


def test_a_spec_does_not_write_the_status_and_a_status_not_the_spec(pools: Pools) -> None:
    stored = pools.create(minimal("apart") | {"status": {"replicas": 7}})
    assert "status" not in stored
    assert pools.patch_status("apart", {"replicas": 1})["metadata"]["generation"] == 1
    assert pools.patch("apart", {"spec": {"replicas": 2}})["metadata"]["generation"] == 2


def test_explain_has_a_sentence_for_every_field(knowing: Cluster) -> None:
    said = knowing.kubectl("explain", f"{RESOURCE}.spec", "--recursive")
    for field in spec_fields():
        if "*" not in field.keys and "[]" not in field.keys:
            assert re.search(rf"^\s*{re.escape(field.keys[-1])}\t", said, re.MULTILINE), field.path


def test_explain_tells_what_a_field_means_and_which_values_it_takes(knowing: Cluster) -> None:
    said = knowing.kubectl("explain", f"{RESOURCE}.spec.routing.policy")
    assert "CacheAware" in said
    assert "RoundRobin" in said
    assert "already holds most of its prompt" in " ".join(said.split())
