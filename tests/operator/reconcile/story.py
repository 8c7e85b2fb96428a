"""A cluster in memory with one pool, what controllers would do in it, and an operator for it."""

import copy
from typing import Any

from pagoda_operator import names
from pagoda_operator.children import Images
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.transport import Answer, Request
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.proofs import Report
from pagoda_operator.reconcile import Reconciler
from pagoda_runtime.metrics import Metrics
from tests.operator.children.pools import IMAGES, MANAGED, PEERS, manifest
from tests.operator.reconcile.objects import Said, said
from tests.support.api_server import MemoryApiServer, answer_of

Json = dict[str, Any]
NAMESPACE, POOL = "models", "chat"
SPEC = {"replicas": 2, "cache": {"ram": {"size": "1Gi"}, "pool": MANAGED}}


class Fleet:
    """What pods say: all the same."""

    def __init__(self) -> None:
        self.words: Said | None = said(pool="ok", generation=1)
        self.expected: list[int] = []

    def report(self, namespace: str, pod_name: str, pod_uid: str) -> Report | None:
        return self.words

    def expect(self, namespace: str, pool: str, generation: int, nodes: str | None) -> None:
        self.expected.append(generation)


class Cluster(MemoryApiServer):
    """The API server in memory, with what controllers would do, as far as a status looks at it."""

    def pool(self, spec: Json, name: str = POOL) -> None:
        made = manifest(name, spec)
        made["metadata"]["namespace"] = NAMESPACE
        self._post("pagoda-kv.io/v1alpha1", "inferencepools", NAMESPACE, made)

    def run_controllers(self) -> None:
        for (_, plural, namespace, name), found in list(self.objects.items()):
            if plural not in ("deployments", "statefulsets"):
                continue
            spec, template = found["spec"], found["spec"]["template"]
            found["status"] = {
                "observedGeneration": found["metadata"]["generation"],
                "replicas": spec["replicas"],
                "updatedReplicas": spec["replicas"],
            }
            part = found["metadata"]["labels"][names.PART_LABEL]
            for index in range(spec["replicas"]):
                containers = [{"name": part, "ready": True}]
                controller = {"kind": "StatefulSet", "name": name, "controller": True}
                if plural == "deployments":
                    controller |= {"kind": "ReplicaSet", "name": f"{name}-6f"}
                metadata = copy.deepcopy(template["metadata"]) | {"ownerReferences": [controller]}
                pod = {
                    "metadata": {**metadata, "name": f"{name}-{index}"},
                    "status": {"phase": "Running", "containerStatuses": containers},
                }
                self.objects.pop(("v1", "pods", namespace, f"{name}-{index}"), None)
                self._post("v1", "pods", namespace, pod)

    def named(self, plural: str, name: str) -> Json:
        return next(found for key, found in self.objects.items() if key[1] == plural and key[3] == name)

    @property
    def status(self) -> Json:
        found: Json = self.named("inferencepools", POOL)["status"]
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        entry = next(entry for entry in self.status["conditions"] if entry["type"] == kind)
        return entry["status"], entry["reason"]


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Story:
    """A cluster with one pool, and an operator for it."""

    def __init__(self, spec: Json = SPEC) -> None:
        self.cluster, self.fleet, self.clock = Cluster(), Fleet(), Clock()
        self.cluster.pool(spec)
        self.restart()

    def restart(self, images: Images = IMAGES) -> None:
        self.metrics = Metrics()
        gauges = PoolGauges(self.metrics)
        self.reconciler = Reconciler(Api(self.cluster), images, PEERS, self.fleet, gauges, self.clock)

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile(NAMESPACE, POOL)

    async def settle(self) -> None:
        await self.reconcile()
        self.cluster.run_controllers()
        assert await self.reconcile() is None
        self.cluster.requests.clear()

    def edit(self, **spec: Any) -> None:
        pool = self.cluster.named("inferencepools", POOL)
        pool["spec"] |= spec
        pool["metadata"]["generation"] += 1
        self.touch(pool)

    def touch(self, found: Json) -> None:
        self.cluster._version += 1
        found["metadata"]["resourceVersion"] = str(self.cluster._version)


class Refusing(Cluster):
    """Refuses to take a kind."""

    refused = "poddisruptionbudgets"
    status_code = 403

    async def send(self, request: Request) -> Answer:
        if request.method != "GET" and self.refused in request.path:
            return answer_of(self.status_code, {"kind": "Status", "message": "may not patch", "details": {"name": "x"}})
        return await super().send(request)
