"""Which pools' pods roll when a new operator wants others."""

import contextlib
from dataclasses import replace

import pytest

from pagoda_operator.kube.errors import FailedError
from pagoda_operator.reconcile import TURN_SECONDS, UNREADY_SECONDS
from tests.operator.children.pools import IMAGES
from tests.operator.reconcile.objects import said
from tests.operator.reconcile.story import NAMESPACE, POOL, SPEC, Cluster, Refusing, Story


@pytest.fixture
def story() -> Story:
    return Story()


async def test_a_new_operators_images_roll_one_serving_pool_at_a_time(story: Story) -> None:
    await story.settle()
    story.cluster.pool(SPEC, "other")
    await story.reconciler.reconcile(NAMESPACE, "other")
    story.cluster.run_controllers()
    assert await story.reconciler.reconcile(NAMESPACE, "other") is None

    story.restart(replace(IMAGES, sidecar="example.com/sidecar:2"))
    await story.reconcile()
    assert story.cluster.condition("Progressing") == ("True", "RollingOut")
    assert await story.reconciler.reconcile(NAMESPACE, "other") == TURN_SECONDS
    waiting = story.cluster.named("inferencepools", "other")["status"]["conditions"]
    told = {entry["type"]: (entry["status"], entry["reason"]) for entry in waiting}
    assert (told["Ready"], told["Progressing"]) == (("True", "Serving"), ("True", "WaitingForTurn"))
    assert sidecar_of(story.cluster, "other") == "example.com/sidecar:1"

    story.cluster.run_controllers()
    await story.reconcile()
    assert story.cluster.condition("Ready") == ("True", "Serving")
    await story.reconciler.reconcile(NAMESPACE, "other")
    assert sidecar_of(story.cluster, "other") == "example.com/sidecar:2"


async def test_a_new_memcached_image_empties_one_pools_cache_at_a_time(story: Story) -> None:
    await story.settle()
    story.cluster.pool(SPEC, "other")
    await story.reconciler.reconcile(NAMESPACE, "other")
    story.cluster.run_controllers()
    await story.reconciler.reconcile(NAMESPACE, "other")

    story.restart(replace(IMAGES, memcached="example.com/memcached:2"))
    assert await story.reconcile() == UNREADY_SECONDS
    assert story.cluster.condition("Ready") == ("True", "Serving"), "a pool serves without its memcached nodes"
    assert await story.reconciler.reconcile(NAMESPACE, "other") == TURN_SECONDS
    assert memcached_of(story.cluster, "chat") == "example.com/memcached:2"
    assert memcached_of(story.cluster, "other") == IMAGES.memcached

    story.cluster.run_controllers()
    assert await story.reconcile() is None
    await story.reconciler.reconcile(NAMESPACE, "other")
    assert memcached_of(story.cluster, "other") == "example.com/memcached:2"


@pytest.mark.parametrize("status", [403, 500])
async def test_a_child_that_is_refused_gives_no_serving_pool_a_turn_of_its_own(story: Story, status: int) -> None:
    story.cluster = cluster = Refusing()
    cluster.refused, cluster.status_code = "nothing", status
    for name in (POOL, "other"):
        cluster.pool(SPEC, name)
    story.restart()
    for name in (POOL, "other"):
        await story.reconciler.reconcile(NAMESPACE, name)
    cluster.run_controllers()
    for name in (POOL, "other"):
        assert await story.reconciler.reconcile(NAMESPACE, name) is None

    cluster.refused = "poddisruptionbudgets"
    cluster.named("poddisruptionbudgets", "other-engine")["spec"] = {}
    story.restart(replace(IMAGES, sidecar="example.com/sidecar:2"))
    await story.reconcile()
    for _ in range(3):
        with contextlib.suppress(FailedError):
            await story.reconciler.reconcile(NAMESPACE, "other")
    assert (sidecar_of(cluster, POOL), sidecar_of(cluster, "other")) == (
        "example.com/sidecar:2", "example.com/sidecar:1",
    )  # fmt: skip


async def test_what_a_user_asks_for_waits_for_no_turn_and_a_pool_that_goes_leaves_its_own(story: Story) -> None:
    await story.settle()
    story.cluster.pool(SPEC, "other")
    await story.reconciler.reconcile(NAMESPACE, "other")
    story.cluster.run_controllers()
    await story.reconciler.reconcile(NAMESPACE, "other")
    story.restart(replace(IMAGES, sidecar="example.com/sidecar:2"))
    await story.reconciler.reconcile(NAMESPACE, "other")

    story.edit(replicas=3)
    await story.reconcile()
    assert sidecar_of(story.cluster, POOL) == "example.com/sidecar:2"

    story.restart(replace(IMAGES, sidecar="example.com/sidecar:3"))
    story.cluster.run_controllers()
    story.fleet.words = said(pool="ok", generation=9)
    await story.reconciler.reconcile(NAMESPACE, "other")
    del story.cluster.objects["pagoda-kv.io/v1alpha1", "inferencepools", NAMESPACE, "other"]
    await story.reconciler.reconcile(NAMESPACE, "other")
    await story.reconcile()
    assert sidecar_of(story.cluster, POOL) == "example.com/sidecar:3"


def sidecar_of(cluster: Cluster, pool: str) -> str:
    spec = cluster.named("deployments", f"{pool}-engine")["spec"]["template"]["spec"]
    return str(spec["initContainers"][0]["image"])


def memcached_of(cluster: Cluster, pool: str) -> str:
    spec = cluster.named("statefulsets", f"{pool}-memcached")["spec"]["template"]["spec"]
    return str(spec["containers"][0]["image"])
