"""Pull secrets on their way from the chart's value to pods: through the ServiceAccounts of a pool's parts."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.handle import Cluster
from e2e.operator.support import operator_identity, running_operator
from tests.operator.children.pools import manifest

Json = dict[str, Any]
SPEC = {"cache": {"ram": {"size": "64Mi"}, "pool": {"managed": {"replicas": 1, "memoryPerReplica": "64Mi"}}}}
PARTS = ("engine", "router", "memcached")
PATIENCE_SECONDS = 120.0


class Scene:
    """A namespace with a pool `chat`, and operators that look after it one after the other."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster, self.namespace, self.folder = cluster, namespace, folder
        self.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(manifest("chat", SPEC)))

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *arguments, **options)

    def get(self, *arguments: str) -> Json:
        return self.cluster.kubectl_json("--namespace", self.namespace, "get", *arguments)

    @contextlib.contextmanager
    def operator(self, *values: str) -> Iterator[None]:
        """Run an operator of a chart with these values."""
        scope = ("watch.scope=Namespaces", f"watch.namespaces={{{self.namespace}}}")
        with (
            operator_identity(self.cluster, self.namespace, *scope, *values) as identity,
            running_operator(identity, self.folder),
        ):
            yield

    def of_accounts(self) -> list[list[str]]:
        """Return the pull secrets of each part's account, as far as it is there."""
        found = {account["metadata"]["name"]: account for account in self.get("serviceaccounts")["items"]}
        return [pull_secrets(found[f"chat-{part}"]) for part in PARTS if f"chat-{part}" in found]

    def pods(self) -> dict[str, Json]:
        """Return the specs of the pool's pods by uid."""
        items = self.get("pods", "--selector=pagoda-kv.io/pool=chat")["items"]
        return {pod["metadata"]["uid"]: pod["spec"] for pod in items if "deletionTimestamp" not in pod["metadata"]}

    def until_there(self, holds: Callable[[], bool] = lambda: True) -> None:
        """Wait until each part has its pod, all of them such that `holds`."""
        until(lambda: len(self.pods()) == len(PARTS) and holds())


def pull_secrets(pod_or_account: Json) -> list[str]:
    return [entry["name"] for entry in pod_or_account.get("imagePullSecrets", ())]


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_SECONDS} s"
        time.sleep(0.2)


@pytest.fixture
def scene(knowing: Cluster, tmp_path: Path) -> Iterator[Scene]:
    with knowing.namespace("pulling") as namespace:
        yield Scene(knowing, namespace, tmp_path)


def test_pull_secrets_that_an_upgrade_names_reach_new_pods_restart_none_and_go_with_the_value(scene: Scene) -> None:
    with scene.operator():
        scene.until_there()
        assert scene.of_accounts() == [[], [], []]
    before = scene.pods().keys()

    with scene.operator("images.pullSecrets[0].name=registry", "images.pullSecrets[1].name=mirror"):
        until(lambda: scene.of_accounts() == [["registry", "mirror"]] * 3)
        assert scene.pods().keys() == before
        scene.kubectl("delete", "pods", "--selector=pagoda-kv.io/pool=chat", "--wait=false")
        scene.until_there(lambda: not scene.pods().keys() & before)
        assert [pull_secrets(spec) for spec in scene.pods().values()] == [["registry", "mirror"]] * 3

    with scene.operator():
        until(lambda: scene.of_accounts() == [[], [], []])
    assert len(scene.get("replicasets")["items"]) == 2, "of engines and of routers, whose templates have not changed"


def test_without_the_value_the_pull_secrets_that_a_person_gives_an_account_stay(scene: Scene) -> None:
    with scene.operator():
        scene.until_there()
        scene.kubectl("patch", "serviceaccount", "chat-engine", "--patch", '{"imagePullSecrets": [{"name": "mine"}]}')
        scene.kubectl("label", "serviceaccount", "chat-engine", "app.kubernetes.io/name-")
        until(lambda: "app.kubernetes.io/name" in scene.get("serviceaccount", "chat-engine")["metadata"]["labels"])
        assert scene.of_accounts() == [["mine"], [], []], "though the operator has written the account"
