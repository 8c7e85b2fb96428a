"""What is read of a cluster, against a server of one dictionary."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda_cli.doctor.checks import examine
from pagoda_cli.doctor.collect import collect
from pagoda_cli.doctor.reading import CallError, Reading
from pagoda_cli.doctor.snapshot import Snapshot
from pagoda_runtime.deadlines import Deadline
from tests.cli.doctor.healthy import MEMCACHED_SECRET, NOW, POOL_SECRET, answer, healthy, operator

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferencepools.pagoda-kv.io"
SHOP = "/api/v1/namespaces/shop"


@dataclass
class Server:
    """Objects by path; what is not there is a 404, what is `forbidden` a 403."""

    objects: dict[str, Any]
    forbidden: tuple[str, ...] = ()
    allowed: bool = True
    pod_seconds: float = 0.0
    address: str = "https://cluster"
    calls: list[str] = field(default_factory=list)

    def call(
        self, method: str, path: str, query: Mapping[str, str], body: Any, seconds: float, max_bytes: int
    ) -> bytes:
        self.calls.append(path)
        if any(part in path for part in self.forbidden):
            raise CallError(403, "forbidden")
        if method == "POST":
            return json.dumps({"status": {"allowed": self.allowed}}).encode()
        if "/proxy/" in path:
            time.sleep(self.pod_seconds)
        if path not in self.objects:
            raise CallError(404, "not found")
        return json.dumps(self.objects[path]).encode()


def listed(items: Any) -> dict[str, Any]:
    kinds = {item["kind"] for item in items} or {"Thing"}
    return {"apiVersion": "v1", "kind": f"{kinds.pop()}List", "items": list(items), "metadata": {}}


def cluster(**changes: Any) -> Server:
    """The healthy cluster behind an API."""
    good = healthy()
    said = answer()
    objects: dict[str, Any] = {
        CRD: good.crd,
        "/apis/pagoda-kv.io/v1alpha1/inferencepools": listed(good.pools),
        "/apis/pagoda-kv.io/v1alpha1/namespaces/shop/inferencepools": listed(good.pools),
        "/apis/pagoda-kv.io/v1alpha1/namespaces/yard/inferencepools": listed(()),
        "/apis/apps/v1/deployments": listed(good.operators or ()),
        "/api/v1/namespaces/pagoda/pods": listed(()),
        "/apis/coordination.k8s.io/v1/namespaces/pagoda/leases/pagoda": good.leases["pagoda", "pagoda"],
        "/api/v1/nodes": listed(good.nodes or ()),
        "/apis/storage.k8s.io/v1/storageclasses": listed(good.storage_classes or ()),
        "/apis/apps/v1/namespaces/shop/deployments": listed(good.deployments or ()),
        "/apis/apps/v1/namespaces/shop/statefulsets": listed(good.stateful_sets or ()),
        f"{SHOP}/services": listed(good.services or ()),
        f"{SHOP}/pods": listed(good.pods or ()),
        "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies": listed(good.policies or ()),
        "/apis/networking.k8s.io/v1/namespaces/pagoda/networkpolicies": listed(()),
        "/apis/policy/v1/namespaces/shop/poddisruptionbudgets": listed(good.budgets or ()),
        f"{SHOP}/events": listed(()),
        f"{SHOP}/secrets/{POOL_SECRET}": {"metadata": {}, "data": {"pool": "czNjcjN0", "digest": "czNjcjN0"}},
        f"{SHOP}/secrets/{MEMCACHED_SECRET}": {
            "metadata": {}, "data": {"username": "czNjcjN0", "password": "czNjcjN0", "auth": "czNjcjN0"},
        },
    }  # fmt: skip
    for name, labels in good.namespaces.items():
        objects[f"/api/v1/namespaces/{name}"] = {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    for pod in good.pods or ():
        proxy = f"{SHOP}/pods/{pod['metadata']['name']}"
        objects[f"{proxy}:8000/proxy/ready"] = said.ready
        objects[f"{proxy}:8001/proxy/v1/summary"] = said.summary
    return Server(objects, **changes)


def read(server: Server, namespace: str | None = None, seconds: float = 30.0) -> Snapshot:
    return collect(Reading(server, Deadline(seconds)), namespace, NOW)


def codes(snapshot: Snapshot) -> list[str]:
    return [finding.code for finding in examine(snapshot)]


def test_a_healthy_cluster_is_read_in_full_and_found_healthy() -> None:
    snapshot = read(cluster())
    assert codes(snapshot) == ["PGD064"]
    assert snapshot.unread == ()
    assert len(snapshot.answers) == 2
    assert len(snapshot.reviews) > 60


def test_no_value_of_a_secret_is_kept() -> None:
    assert "czNjcjN0" not in repr(read(cluster()))


def test_one_namespace_is_read_without_a_word_about_others() -> None:
    server = cluster()
    assert read(server, "yard").pools == ()
    assert len(read(server, "shop").pools) == 1
    assert "/apis/pagoda-kv.io/v1alpha1/inferencepools" not in server.calls


def test_without_the_kind_nothing_of_it_is_asked_for() -> None:
    server = cluster()
    del server.objects[CRD]
    assert "PGD001" in codes(read(server))
    assert not any("pagoda-kv.io/v1alpha1" in path for path in server.calls)


def test_every_right_that_may_be_missing_is_named_and_stops_nothing() -> None:
    for part, words in (
        ("customresourcedefinitions", "customresourcedefinitions"), ("/secrets/", "get secrets in namespace shop"),
        ("/nodes", "list nodes"), ("storageclasses", "list storageclasses"),
        ("/apis/apps/v1/deployments", "deployments in all namespaces"), ("shop/pods", "list pods in namespace shop"),
        ("networkpolicies", "networkpolicies in namespace shop"),
        ("poddisruptionbudgets", "poddisruptionbudgets"), ("leases", "leases in namespace pagoda"),
        ("subjectaccessreviews", "create subjectaccessreviews"), ("/proxy/", "get pods/proxy in namespace shop"),
        ("/events", "list events"), ("/services", "list services"), ("statefulsets", "list statefulsets"),
    ):  # fmt: skip
        found = examine(read(cluster(forbidden=(part,))))
        told = [finding.seen for finding in found if finding.code in ("PGD024", "PGD090")]
        assert any(words in text for text in told), (part, told)
        assert {finding.code for finding in found} <= {"PGD024", "PGD064", "PGD090"}, part


def test_with_no_right_at_all_the_doctor_still_answers() -> None:
    assert set(codes(read(cluster(forbidden=("/",))))) == {"PGD090"}


def test_a_right_that_the_operator_lacks_is_found_by_asking_for_each() -> None:
    found = examine(read(cluster(allowed=False)))
    (lacking,) = [finding.seen for finding in found if finding.code == "PGD013"]
    assert lacking.startswith("it may not get inferencepools.pagoda-kv.io in all namespaces, ")
    assert "more" in lacking


def test_a_confined_operator_is_asked_about_the_namespaces_that_it_serves_and_that_have_pools() -> None:
    server = cluster()
    server.objects["/apis/apps/v1/deployments"] = listed([operator(serves=("shop", "empty"))])
    rights = [review.right for review in read(server).reviews]
    assert "get pods in namespace shop" in rights
    assert not any("empty" in right or "all namespaces" in right for right in rights)
    assert "update leases.coordination.k8s.io pagoda in namespace pagoda" in rights


def test_pods_that_there_was_no_time_for_are_counted() -> None:
    server = cluster(pod_seconds=0.3)
    pods = [dict(pod) for _ in range(40) for pod in (healthy().pods or ())]
    server.objects[f"{SHOP}/pods"] = listed(pods)
    snapshot = read(server, seconds=1.0)
    assert snapshot.num_not_asked > 0
    assert "PGD058" in codes(snapshot)
