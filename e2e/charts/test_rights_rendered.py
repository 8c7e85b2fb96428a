"""What the chart lets the operator do, by its manifests."""

from collections.abc import Iterator

from e2e.charts.rendered import Manifest, of_kind, operator_container, render


def rules_of(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield every rule with the concern whose role it is in; those for people are `people`."""
    for role in of_kind(manifests, "Role", "ClusterRole"):
        for rule in role["rules"]:
            yield role["metadata"]["labels"].get("pagoda-kv.io/rules", "people"), rule


def test_the_operator_may_do_nothing_by_wildcard_and_grants_nothing_that_it_does_not_hold() -> None:
    for scope in ("Cluster", "Namespaces"):
        rules = list(rules_of(render("--set", f"watch.scope={scope}")))
        assert len(rules) > 10
        for _, rule in rules:
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert not {"*", "bind", "escalate", "impersonate"} & set(words)
        [secrets] = [rule for _, rule in rules if "secrets" in rule["resources"]]
        assert secrets["resources"] == ["secrets"]
        assert set(secrets["verbs"]) == {"create", "delete"}
        [granted] = [rule for name, rule in rules if name == "router-grant"]
        assert granted == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
        # It never writes what the user wants: the spec of a pool.
        pool_verbs = [
            set(rule["verbs"]) for name, rule in rules if name != "people" and "inferencepools" in rule["resources"]
        ]
        assert pool_verbs == [{"get", "list", "watch"}]


def test_each_concern_has_a_role_of_its_own_that_is_bound_to_the_operator_alone() -> None:
    manifests = render()
    roles = {m["metadata"]["name"] for m in manifests if m["kind"] in ("Role", "ClusterRole")}
    people = {
        m["metadata"]["name"]
        for m in of_kind(manifests, "ClusterRole")
        if "pagoda-kv.io/rules" not in m["metadata"]["labels"]
    }
    bound = []
    for binding in [*of_kind(manifests, "ClusterRoleBinding"), *of_kind(manifests, "RoleBinding")]:
        bound.append(binding["roleRef"]["name"])
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "first-pagoda", "namespace": "system"}]
    assert sorted(bound) == sorted(roles - people)
    assert {name.rpartition(":")[2] for name in people} == {"view", "edit"}


def test_an_operator_for_some_namespaces_gets_roles_there_and_nothing_of_the_cluster() -> None:
    manifests = render("--set", "watch.scope=Namespaces,watch.namespaces={two,one},crds.install=false")
    assert not {m["kind"] for m in manifests} & {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    places = {m["metadata"]["namespace"] for m in of_kind(manifests, "Role")}
    assert places == {"one", "two", "system"}
    in_system = [
        name
        for m in of_kind(manifests, "Role")
        if m["metadata"]["namespace"] == "system"
        for name in [m["metadata"]["name"]]
    ]
    assert in_system == ["first-pagoda:system:lease"]
    operator = operator_container(manifests)
    assert [argument for argument in operator["args"] if argument.startswith("--namespace=")] == [
        "--namespace=one",
        "--namespace=two",
    ]
    for monitor in of_kind(manifests, "PodMonitor"):
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["one", "two"]}
