"""What the operator's ServiceAccount can do, asked of the API server as that account."""

import json
from typing import Any

import pytest

from e2e.charts.releases import POOL, Releases
from e2e.cluster.handle import Cluster, KubectlError

POD_RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}


class Account:
    """kubectl as the operator's ServiceAccount of one release."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._kubeconfig = str(cluster.service_account_kubeconfig(namespace, name))

    def can(self, verb: str, resource: str, *options: str) -> bool:
        try:
            self._cluster.kubectl(
                "auth", "can-i", verb, resource, "--quiet", *options, "--kubeconfig", self._kubeconfig
            )
        except KubectlError:
            return False
        return True

    def create(self, manifest: dict[str, Any]) -> None:
        self._cluster.kubectl("create", "-f", "-", "--kubeconfig", self._kubeconfig, input=json.dumps(manifest))


def role(namespace: str, name: str, rule: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}


def binding(namespace: str, name: str, role_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role_name},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }


@pytest.fixture(params=["Cluster", "Namespaces"])
def served(request: pytest.FixtureRequest, bare_cluster: Cluster, releases: Releases) -> tuple[str, Account]:
    """A namespace that the operator serves, which is not its own, and its account."""
    home, namespace = releases.namespace(), releases.namespace()
    scope = () if request.param == "Cluster" else ("--set", f"watch.scope=Namespaces,watch.namespaces={{{namespace}}}")
    releases.install("first", home, *scope)
    return namespace, Account(bare_cluster, home, "first-pagoda")


def test_the_operator_can_do_its_work_and_not_read_a_secret_or_write_a_pool(served: tuple[str, Account]) -> None:
    namespace, operator = served
    inside = ("--namespace", namespace)
    for verb in ("get", "list", "watch", "create", "patch", "delete"):
        for resource in (
            "deployments.apps", "statefulsets.apps", "services", "configmaps", "serviceaccounts",
            "poddisruptionbudgets.policy", "networkpolicies.networking.k8s.io", "roles.rbac.authorization.k8s.io",
            "rolebindings.rbac.authorization.k8s.io",
        ):  # fmt: skip
            assert operator.can(verb, resource, *inside), f"{verb} {resource}"
    assert {
        verb
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        if operator.can(verb, "secrets", *inside)
    } == {"create", "delete"}
    assert {
        verb
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        if operator.can(verb, "inferencepools.pagoda-kv.io", *inside)
    } == {"get", "list", "watch"}
    assert operator.can("patch", "inferencepools.pagoda-kv.io", "--subresource=status", *inside)
    for resource in ("nodes", "namespaces", "customresourcedefinitions.apiextensions.k8s.io", "persistentvolumes"):
        assert not operator.can("get", resource)
    for subresource in ("exec", "portforward", "eviction"):
        assert not operator.can("create", "pods", f"--subresource={subresource}", *inside)


def test_the_operator_grants_a_router_what_it_needs_and_nobody_more(
    served: tuple[str, Account], bare_cluster: Cluster
) -> None:
    namespace, operator = served
    operator.create(role(namespace, "chat-router", POD_RULE))
    operator.create(binding(namespace, "chat-router", "chat-router"))
    for rule in (POD_RULE | {"resources": ["secrets"]}, POD_RULE | {"verbs": ["get", "list", "watch", "delete"]}):
        with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
            operator.create(role(namespace, "more", rule))
    bare_cluster.apply(json.dumps(role(namespace, "theirs", POD_RULE | {"verbs": ["deletecollection"]})))
    with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
        operator.create(binding(namespace, "theirs", "theirs"))


def test_an_operator_of_some_namespaces_can_do_nothing_in_others(bare_cluster: Cluster, releases: Releases) -> None:
    home, other = releases.namespace(), releases.namespace()
    releases.install("first", home, "--set", "watch.scope=Namespaces")
    operator = Account(bare_cluster, home, "first-pagoda")
    assert operator.can("list", "inferencepools.pagoda-kv.io", "--namespace", home)
    for resource in ("inferencepools.pagoda-kv.io", "deployments.apps", "pods", "leases.coordination.k8s.io"):
        assert not operator.can("list", resource, "--namespace", other)
        assert not operator.can("create", resource, "--namespace", other)


def test_the_lease_of_another_release_is_out_of_reach(bare_cluster: Cluster, releases: Releases) -> None:
    home = releases.namespace()
    releases.install("first", home, "--set", "watch.scope=Namespaces")
    operator = Account(bare_cluster, home, "first-pagoda")
    assert operator.can("update", "leases.coordination.k8s.io/first-pagoda", "--namespace", home)
    assert not operator.can("update", "leases.coordination.k8s.io/second-pagoda", "--namespace", home)


def test_people_get_pools_with_the_roles_that_they_have(bare_cluster: Cluster, releases: Releases) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace)
    bare_cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=POOL)
    for account, role_name in (("viewer", "view"), ("editor", "edit")):
        bare_cluster.kubectl("create", "serviceaccount", account, "--namespace", namespace)
        subject = f"--serviceaccount={namespace}:{account}"
        bare_cluster.kubectl("create", "rolebinding", account, f"--clusterrole={role_name}", subject, "-n", namespace)
    viewer, editor = (Account(bare_cluster, namespace, name) for name in ("viewer", "editor"))
    kind = "inferencepools.pagoda-kv.io"
    inside = ("--namespace", namespace)
    assert viewer.can("list", kind, *inside)
    assert not viewer.can("create", kind, *inside)
    assert editor.can("create", kind, *inside)
    assert editor.can("patch", kind, "--subresource=scale", *inside)
    assert not editor.can("patch", kind, "--subresource=status", *inside)
