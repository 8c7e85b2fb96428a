"""What the operator's ServiceAccount can do, asked of the API server as that account."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.charts.releases import Releases, eventually
from e2e.cluster.handle import Cluster, KubectlError

POD_RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
RBAC = "rbac.authorization.k8s.io"
READ, CHILD = ("get", "list", "watch"), ("get", "list", "watch", "create", "patch", "delete")
# All that the operator can do with objects of a namespace that it serves.
RIGHTS = {
    ("pagoda-kv.io", "inferencepools"): READ,
    ("pagoda-kv.io", "inferencepools/status"): ("patch",),
    ("apps", "deployments"): CHILD,
    ("apps", "statefulsets"): CHILD,
    ("", "services"): CHILD,
    ("", "configmaps"): CHILD,
    ("", "serviceaccounts"): CHILD,
    ("policy", "poddisruptionbudgets"): CHILD,
    ("networking.k8s.io", "networkpolicies"): CHILD,
    (RBAC, "roles"): CHILD,
    (RBAC, "rolebindings"): CHILD,
    ("", "pods"): (*READ, "patch"),
    ("", "secrets"): ("create", "delete"),
    ("events.k8s.io", "events"): ("create",),
}


class Account:
    """kubectl as a ServiceAccount."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._kubeconfig = str(cluster.service_account_kubeconfig(namespace, name))

    def rights(self, namespace: str) -> dict[tuple[str, str], set[str]]:
        """Return the verbs for each resource of a namespace, those for single names left out."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        answer = self.create(review)["status"]
        assert not answer["incomplete"]
        found: dict[tuple[str, str], set[str]] = {}
        for rule in answer["resourceRules"]:
            if rule.get("resourceNames"):
                continue
            for key in itertools.product(rule["apiGroups"], rule["resources"]):
                found.setdefault(key, set()).update(rule["verbs"])
        return found

    def can(self, verb: str, resource: str, namespace: str) -> bool:
        question = ("auth", "can-i", verb, resource, "--quiet", "--namespace", namespace)
        try:
            self._cluster.kubectl(*question, "--kubeconfig", self._kubeconfig)
        except KubectlError:
            return False
        return True

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        # kubectl's own validation would ask for CRDs, which the account may not see.
        given = ("create", "-f", "-", "--validate=false", "--kubeconfig", self._kubeconfig, "--output", "json")
        return dict(json.loads(self._cluster.kubectl(*given, input=json.dumps(manifest))))


@dataclass(frozen=True)
class Served:
    """A release, a namespace that it serves, and one that it has nothing to do with unless it serves all."""

    scope: str
    home: str
    namespace: str
    elsewhere: str
    operator: Account
    anybody: Account

    def rights(self, namespace: str) -> dict[tuple[str, str], set[str]]:
        """Return what the operator may do in a namespace and not any ServiceAccount."""
        usual = self.anybody.rights(namespace)
        return {key: verbs for key, verbs in self.operator.rights(namespace).items() if key not in usual}


@pytest.fixture(scope="module", params=["Cluster", "Namespaces"])
def served(request: pytest.FixtureRequest, bare_cluster: Cluster) -> Iterator[Served]:
    releases = Releases(bare_cluster)
    try:
        home, namespace, elsewhere = (releases.namespace() for _ in range(3))
        narrow = ("--set", f"watch.scope=Namespaces,watch.namespaces={{{namespace}}}")
        releases.install("first", home, *(narrow if request.param == "Namespaces" else ()))
        operator, anybody = (Account(bare_cluster, home, name) for name in ("first-pagoda", "default"))
        yield Served(request.param, home, namespace, elsewhere, operator, anybody)
    finally:
        releases.remove()


def role(namespace: str, name: str, rule: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}


def binding(namespace: str, name: str, role_name: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role_name},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }


def test_the_operator_has_exactly_the_rights_of_its_work_where_it_serves(served: Served) -> None:
    wanted = {key: set(verbs) for key, verbs in RIGHTS.items()}
    assert served.rights(served.namespace) == wanted
    assert served.rights(served.elsewhere) == (wanted if served.scope == "Cluster" else {})


def test_the_operator_renews_its_own_lease_and_no_other(served: Served) -> None:
    operator, home = served.operator, served.home
    assert operator.rights(home)[("coordination.k8s.io", "leases")] == {"create"}
    assert operator.can("update", "leases.coordination.k8s.io/first-pagoda", home)
    assert not operator.can("update", "leases.coordination.k8s.io/second-pagoda", home)
    assert not operator.can("update", "leases.coordination.k8s.io/first-pagoda", served.namespace)


def test_the_operator_grants_a_router_what_it_needs_and_nobody_more(served: Served, bare_cluster: Cluster) -> None:
    namespace, operator = served.namespace, served.operator
    operator.create(role(namespace, "chat-router", POD_RULE))
    operator.create(binding(namespace, "chat-router", "chat-router"))
    for rule in (POD_RULE | {"resources": ["secrets"]}, POD_RULE | {"verbs": ["get", "list", "watch", "delete"]}):
        with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
            operator.create(role(namespace, "more", rule))
    bare_cluster.apply(json.dumps(role(namespace, "theirs", POD_RULE | {"verbs": ["deletecollection"]})))
    with pytest.raises(KubectlError, match="attempting to grant RBAC permissions not currently held"):
        operator.create(binding(namespace, "theirs", "theirs"))


def test_people_get_pools_with_the_roles_that_they_have_where_a_release_serves_the_cluster(
    served: Served, bare_cluster: Cluster
) -> None:
    namespace = served.elsewhere
    for account in ("view", "edit"):
        bare_cluster.kubectl("create", "serviceaccount", account, "--namespace", namespace)
        subject = f"--serviceaccount={namespace}:{account}"
        bare_cluster.kubectl("create", "rolebinding", account, f"--clusterrole={account}", subject, "-n", namespace)
    pools, scale, status = (("pagoda-kv.io", f"inferencepools{part}") for part in ("", "/scale", "/status"))
    accounts = [Account(bare_cluster, namespace, name) for name in ("view", "edit")]
    are_known = served.scope == "Cluster"
    # A controller gathers the roles.
    assert eventually(lambda: all((pools in account.rights(namespace)) == are_known for account in accounts))
    if are_known:
        viewer, editor = (account.rights(namespace) for account in accounts)
        assert viewer[pools] == viewer[status] == viewer[scale] == set(READ)
        assert editor[pools] >= {*READ, "create", "update", "patch", "delete"}
        assert editor[scale] >= {"update", "patch"}
        assert editor[status] == set(READ)
