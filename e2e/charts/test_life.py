"""The life of releases on a real API server, from the first install to the last uninstall."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from e2e.charts.releases import (
    CHART,
    KIND,
    KIND_CHART,
    POOL,
    PREVIOUS,
    VALUE_SETS,
    Releases,
    eventually,
)  # fmt: skip
from e2e.cluster.handle import Cluster, KubectlError

OWNER = "jsonpath={.metadata.annotations.meta\\.helm\\.sh/release-name}"
NARROW = ("--set", "watch.scope=Namespaces")
NO_KIND = ("--set", "crds.install=false")


def owner_of_the_kind(cluster: Cluster) -> str:
    return cluster.kubectl("get", "crd", KIND, "--output", OWNER)


def schema_of_the_kind(cluster: Cluster) -> dict[str, object]:
    return dict(cluster.kubectl_json("get", "crd", KIND)["spec"]["versions"][0]["schema"])


def pools(cluster: Cluster, namespace: str) -> list[str]:
    return cluster.kubectl("get", KIND, "--namespace", namespace, "--output", "name").split()


def operator_pods(cluster: Cluster, namespace: str) -> list[dict[str, object]]:
    chosen = ("--namespace", namespace, "--selector", "app.kubernetes.io/component=operator")
    return list(cluster.kubectl_json("get", "pods", *chosen)["items"])


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem)
def test_a_value_set_is_taken_by_the_api_server_and_leaves_nothing(
    monitored_cluster: Cluster, releases: Releases, values: Path
) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace, "--values", str(values))
    wanted = monitored_cluster.kubectl_json("get", "deployments", "--namespace", namespace)["items"][0]["spec"][
        "replicas"
    ]
    # The controllers make the pods, so the namespace's pod security takes them.
    assert eventually(lambda: len(operator_pods(monitored_cluster, namespace)) == wanted)
    releases.uninstall("first", namespace)
    assert eventually(lambda: not releases.left_of("first", namespace)), releases.left_of("first", namespace)


def test_what_the_notes_tell_to_type_works(bare_cluster: Cluster, releases: Releases) -> None:
    namespace = releases.namespace()
    notes = releases.install("first", namespace, *NARROW).partition("NOTES:")[2]
    commands = re.findall(r"^  ((?:kubectl|helm) .*?)(?=\n\n|\Z)", notes, re.MULTILINE | re.DOTALL)
    wait, apply, watch, test = (re.sub(r"^  ", "", command, flags=re.MULTILINE) for command in commands)

    def typed(command: str, seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f"timeout {seconds} {command}"], env=bare_cluster.environment(),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert f"{KIND.partition('.')[0].removesuffix('s')}.pagoda-kv.io/chat created" in typed(apply, 30).stdout
    # There is no node: what waits goes on waiting, and that is all it complains of.
    waited = typed(wait.replace("120s", "1s"), 30)
    assert "timed out waiting" in waited.stderr + waited.stdout
    assert re.search(r"^chat\s", typed(watch, 5).stdout, re.MULTILINE)
    assert test.strip() == f"helm test first --namespace {namespace} --timeout 340s"


def test_an_upgrade_from_the_previous_chart_and_the_way_back_keep_pools_and_the_kind(
    bare_cluster: Cluster, releases: Releases
) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace, chart=PREVIOUS)
    eventually(lambda: KIND in bare_cluster.kubectl("api-resources", "--api-group", "pagoda-kv.io", "--output", "name"))
    bare_cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=POOL)
    before = schema_of_the_kind(bare_cluster)
    releases.upgrade("first", namespace)
    now = schema_of_the_kind(bare_cluster)
    assert now != before
    assert bare_cluster.kubectl_json("get", "deployment", "first-pagoda", "-n", namespace)["metadata"]["labels"][
        "app.kubernetes.io/version"
    ] != PREVIOUS.stem.removeprefix("pagoda-")
    bare_cluster.helm("rollback", "first", "1", "--namespace", namespace)
    assert schema_of_the_kind(bare_cluster) == before
    assert pools(bare_cluster, namespace) == [f"{KIND.replace('pools', 'pool')}/chat"]


def test_uninstalling_leaves_the_kind_and_pools_and_nothing_else_and_another_name_takes_over(
    bare_cluster: Cluster, releases: Releases
) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace)
    bare_cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=POOL)
    assert "kept" in releases.uninstall("first", namespace)
    assert eventually(lambda: not releases.left_of("first", namespace)), releases.left_of("first", namespace)
    assert pools(bare_cluster, namespace)

    with pytest.raises(KubectlError, match="invalid ownership metadata"):
        releases.install("second", namespace)
    releases.install("second", namespace, "--take-ownership", "--force-conflicts")
    assert owner_of_the_kind(bare_cluster) == "second"
    assert pools(bare_cluster, namespace)
    releases.upgrade("second", namespace, "--set", "operator.replicas=3")


def test_two_releases_stand_side_by_side_where_they_serve_other_namespaces(
    bare_cluster: Cluster, releases: Releases
) -> None:
    one, two = releases.namespace(), releases.namespace()
    releases.install("same", one, *NARROW)
    with pytest.raises(KubectlError, match="invalid ownership metadata"):  # each kind has one owner
        releases.install("same", two, *NARROW)
    releases.install("same", two, *NARROW, *NO_KIND)
    releases.uninstall("same", one)
    assert owner_of_the_kind(bare_cluster) == "same"
    assert len(releases.left_of("same", two)) > 20
    assert eventually(lambda: not [left for left in releases.left_of("same", one) if "cluster" not in left])


def test_a_release_that_would_serve_what_another_one_serves_is_refused(
    bare_cluster: Cluster, releases: Releases
) -> None:
    one, two = releases.namespace(), releases.namespace()
    releases.install("wide", one)
    with pytest.raises(KubectlError, match=f"release {one}/wide serves every namespace already"):
        releases.install("other", two, *NO_KIND)
    narrow = (*NARROW, "--set", f"watch.namespaces={{{two}}}", *NO_KIND)
    releases.install("narrow", two, *narrow)
    with pytest.raises(KubectlError, match=f"release {two}/narrow serves namespace {two} already"):
        releases.install("third", one, *narrow)
    # Who has rights in one namespace cannot keep the cluster's release from being upgraded, but it says so.
    assert f"release {two}/narrow serves namespace {two}" in releases.upgrade("wide", one)


def test_a_kind_that_somebody_edited_stops_an_upgrade_by_name_until_it_is_forced(
    bare_cluster: Cluster, releases: Releases
) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace)
    edit = [{"op": "add", "path": "/spec/names/shortNames/-", "value": "edited"}]
    bare_cluster.kubectl(
        "patch", "crd", KIND, "--type=json", "--field-manager=kubectl-edit", "--patch", json.dumps(edit)
    )
    with pytest.raises(KubectlError, match=r'conflicts? with "kubectl-edit"[\s\S]*shortNames'):
        releases.upgrade("first", namespace)
    releases.upgrade("first", namespace, "--force-conflicts")
    names = bare_cluster.kubectl_json("get", "crd", KIND)["spec"]["names"]["shortNames"]
    assert "edited" not in names
    releases.upgrade("first", namespace)


def test_the_kind_moves_from_the_chart_to_the_chart_of_the_kind_without_losing_a_pool(
    bare_cluster: Cluster, releases: Releases
) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace)
    bare_cluster.kubectl("apply", "--namespace", namespace, "-f", "-", input=POOL)
    releases.upgrade("first", namespace, *NO_KIND)
    releases.install("kind", namespace, "--take-ownership", "--force-conflicts", chart=KIND_CHART)
    assert owner_of_the_kind(bare_cluster) == "kind"
    releases.uninstall("first", namespace)
    releases.uninstall("kind", namespace)
    assert pools(bare_cluster, namespace)


def test_a_release_fits_well_into_the_secret_in_which_helm_keeps_it(bare_cluster: Cluster, releases: Releases) -> None:
    namespace = releases.namespace()
    releases.install("first", namespace, chart=CHART)
    [secret] = bare_cluster.kubectl_json("get", "secrets", "--namespace", namespace, "-l", "owner=helm")["items"]
    assert len(secret["data"]["release"]) < 500_000  # of a MiB
