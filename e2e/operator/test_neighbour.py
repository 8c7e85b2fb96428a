"""The operator as the program it is, beside pools of the same name and kind that are somebody else's.

They are the Gateway API Inference Extension's, of both its groups. All other stories of this folder run without it.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from e2e.cluster.handle import Cluster
from e2e.crd import inference_extension
from e2e.crd.inference_extension import EXPERIMENTAL
from e2e.crd.inference_extension import RESOURCE as THEIRS
from e2e.crd.pools import RESOURCE as OURS
from e2e.operator.doors import open_doors
from e2e.operator.played import Scene, eventually, playing
from e2e.operator.support import operator_identity, running_operator
from pagoda_cli.doctor.command import Request, examined
from pagoda_operator import names
from pagoda_operator.kube.kinds import CHILDREN, EVENT, POD, POOL
from pagoda_protocol.annotations import CACHE_EPOCH
from pagoda_protocol.metrics import OPERATOR_API_CALLS
from tests.operator.children.pools import MANAGED
from tests.support.program import Program

Json = dict[str, Any]
SPEC: Json = {"replicas": 2, "cache": {"ram": {"size": "64Mi"}, "pool": MANAGED}}


async def test_a_pool_beside_others_of_its_name_and_kind(knowing: Cluster, tmp_path: Path) -> None:
    async with (
        playing(knowing, "neighbour") as scene,
        open_doors(lambda: scene.kubelet.live_generations.get("chat", 0)) as doors,
    ):
        scene.kubelet.address_of = doors.address_of
        with operator_identity(knowing, scene.namespace) as identity, inference_extension.installed(knowing):
            await kubectl(scene, "create", "-f", "-", input=inference_extension.POOLS)
            theirs = await read_theirs(scene)
            with running_operator(identity, tmp_path) as operator:
                await scene.apply("chat", SPEC)
                await scene.until("chat", "Ready", "True")
                await scene.until("chat", "PoolReady", "True")
                await eventually(lambda: is_annotated(scene))
                await check_ours(scene)
                await check_quiet(operator)
            beside = await findings(scene)
            assert await read_theirs(scene) == theirs
        without = await findings(scene)
    assert beside == {*without, ("PGD004", THEIRS)}
    assert without.isdisjoint({("PGD001", OURS), ("PGD002", OURS), ("PGD003", OURS), ("PGD004", THEIRS)})


async def kubectl(scene: Scene, *arguments: str, **options: Any) -> str:
    """Run kubectl in the scene's namespace."""
    return await asyncio.to_thread(scene.cluster.kubectl, "-n", scene.namespace, *arguments, **options)


async def read_theirs(scene: Scene) -> list[Json]:
    """Return the neighbours' pools, with all that anybody wrote on them."""
    words = ("chat", "--show-managed-fields", "-o", "json")
    return [json.loads(await kubectl(scene, "get", resource, *words)) for resource in (THEIRS, EXPERIMENTAL)]


async def is_annotated(scene: Scene) -> bool:
    pods, _ = await scene.api.list(POD, scene.namespace, names.selector_text("chat", names.ENGINE))
    return all(CACHE_EPOCH in pod["metadata"].get("annotations", {}) for pod in pods)


async def check_ours(scene: Scene) -> None:
    """Assert that kubectl's short name shows our pool, and that children and events are about it."""
    head, row = [line.split() for line in (await kubectl(scene, "get", "pgp")).splitlines()]
    assert (head[:3], row[:3]) == (["NAME", "READY", "DESIRED"], ["chat", "2", "2"])
    owner = {"apiVersion": POOL.api_version, "uid": (await scene.pool("chat"))["metadata"]["uid"]}
    lists = await asyncio.gather(*(scene.api.list(kind, scene.namespace, names.POOL_LABEL) for kind in CHILDREN))
    for child in (each for found, _ in lists for each in found):
        (reference,) = child["metadata"]["ownerReferences"]
        assert reference.items() >= owner.items(), child["metadata"]["name"]
    events, _ = await scene.api.list(EVENT, scene.namespace)
    about = [event["regarding"] for event in events if event["regarding"]["kind"] == POOL.kind]
    assert about
    assert all(each.items() >= owner.items() for each in about)


async def check_quiet(operator: Program) -> None:
    """Assert that nothing was refused and nothing failed, and that the other groups are nothing to the operator."""
    for code in ("400", "401", "403", "422", "500"):
        assert await asyncio.to_thread(operator.metric, f"{OPERATOR_API_CALLS}_total", code=code) == 0, code
    text = operator.log.read_text()
    assert "Traceback" not in text
    assert "inference.networking" not in text


async def findings(scene: Scene) -> set[tuple[str, str]]:
    """Return what the doctor finds: codes, and the names of what they are about."""
    request = Request(scene.namespace, scene.cluster.kubeconfig, None, as_json=True)
    report = await asyncio.to_thread(examined, request)
    return {(each.code, each.place.name) for each in report.findings}
