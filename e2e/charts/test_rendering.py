"""What the charts render, with Helm itself and without a cluster."""

import json
import re
from pathlib import Path

import pytest
import yaml

from e2e.charts.releases import CHART, KIND_CHART, VALUE_SETS
from e2e.charts.rendered import PROMETHEUS, RefusedError, helm, of_kind, operator_container, operator_pod, render


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem)
def test_a_value_set_passes_the_strict_linter(values: Path) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(values))


def test_the_chart_of_the_kind_passes_the_strict_linter() -> None:
    helm("lint", "--strict", str(KIND_CHART))


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem)
def test_every_object_says_whose_it_is_and_is_made_once(values: Path) -> None:
    manifests = render("--values", str(values))
    keys = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in manifests]
    assert len(set(keys)) == len(keys)
    for manifest in manifests:
        assert manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "pagoda"
        if manifest["kind"] != "CustomResourceDefinition":
            assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "first"


def test_objects_of_two_releases_have_no_name_in_common_even_if_the_releases_do() -> None:
    def names(*options: str) -> set[tuple[str, str, str]]:
        # The last namespace given is the one that counts.
        made = render("--set", "crds.install=false,test.enabled=false", *options, name="same")
        return {(m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in made}

    scope = ("--set", "watch.scope=Namespaces,watch.namespaces={shared}")
    for options in ((), scope):
        one, two = (names("--namespace", namespace, *options) for namespace in ("one", "two"))
        assert one
        assert not one & two


def test_images_come_from_the_registry_given_and_by_digest_where_one_is_given() -> None:
    manifests = render("--values", str(CHART / "ci" / "digests-values.yaml"))
    operator = operator_container(manifests)
    images = [operator["image"], *(a.partition("=")[2] for a in operator["args"] if "-image=" in a)]
    assert len(images) == 5
    for number, image in enumerate(images, start=1):
        assert re.fullmatch(rf"registry\.example\.com/\w+/[\w-]+@sha256:0+{number}", image)
    [test] = of_kind(manifests, "Pod")
    assert test["spec"]["containers"][0]["image"] == operator["image"]
    version = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"]
    plain = operator_container(render("--set", "images.registry=localhost:5000/mine"))
    assert plain["image"] == f"localhost:5000/mine/pagoda-operator:{version}"


def test_every_pod_pulls_with_the_secrets_that_are_named_once() -> None:
    manifests = render("--set", "images.pullSecrets[0].name=mirror")
    [test] = of_kind(manifests, "Pod")
    for pod in (test["spec"], operator_pod(manifests)):
        assert pod["imagePullSecrets"] == [{"name": "mirror"}]
    assert "--image-pull-secret=mirror" in operator_container(manifests)["args"], "for the pods of pools"


def test_where_images_are_pulled_from_has_to_be_said_once_or_for_each() -> None:
    with pytest.raises(
        RefusedError, match=r"images\.registry is not set.*--set images\.registry=registry\.example\.com"
    ):
        render("--set", "images.registry=")
    each = ",".join(f"images.{part}.registry=own" for part in ("operator", "engine", "sidecar", "router"))
    assert operator_container(render("--set", f"images.registry=,{each}"))["image"].startswith("own/pagoda-operator:")


@pytest.mark.parametrize("kind", PROMETHEUS)
def test_objects_of_prometheus_operator_are_made_only_where_their_kind_is_served(kind: str) -> None:
    name = kind.rpartition("/")[2]
    assert of_kind(render(apis=(kind,)), name)
    assert not of_kind(render(apis=tuple(other for other in PROMETHEUS if other != kind)), name)


def test_alerts_reach_prometheus_operator_and_plain_prometheus_alike_each_with_its_runbook() -> None:
    manifests = render()
    [rule] = of_kind(manifests, "PrometheusRule")
    maps = {m["metadata"]["name"]: m["data"] for m in of_kind(manifests, "ConfigMap")}
    assert yaml.safe_load(maps["first-pagoda-alerts"]["pagoda.rules.yaml"])["groups"] == rule["spec"]["groups"]
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert {alert["alert"] for alert in alerts} == maps["first-pagoda-runbooks"].keys()
    for alert in alerts:
        command = alert["annotations"]["runbook"]
        assert f"first-pagoda-runbooks --output jsonpath='{{.data.{alert['alert']}}}'" in command
        assert "{{" not in command  # Prometheus would evaluate it
    [linked] = of_kind(
        render("--set", "monitoring.alerts.runbookUrlPrefix=https://example.com/books/"), "PrometheusRule"
    )
    for group in linked["spec"]["groups"]:
        for alert in group["rules"]:
            assert alert["annotations"]["runbook_url"] == f"https://example.com/books/{alert['alert']}.md"
    assert json.loads(maps["first-pagoda-dashboard"]["pagoda.json"])["panels"]


def test_nobody_may_scrape_where_no_namespace_is_named() -> None:
    manifests = render("--set", "networkPolicy.metricsNamespaceLabels.kubernetes\\.io/metadata\\.name=null")
    [policy] = of_kind(manifests, "NetworkPolicy")
    assert policy["spec"]["ingress"] == []
    assert not [a for a in operator_container(manifests)["args"] if a.startswith("--metrics-namespace")]


@pytest.mark.parametrize("name", ["a", "pagoda", "1st", "a-name-of-a-release-that-is-as-long-as-helm-lets-it"])
def test_any_release_name_that_helm_takes_makes_names_that_kubernetes_takes(name: str) -> None:
    manifests = render(name=name)
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 63 or manifest["kind"].endswith(("Role", "Binding"))
    [pool] = of_kind(manifests, "InferencePool")
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", pool["metadata"]["name"])


def test_long_names_that_differ_only_in_their_end_stay_two() -> None:
    name = "a-name-of-a-release-that-is-as-long-as-helm-lets-"
    one, two = (of_kind(render(name=name + end), "InferencePool")[0]["metadata"]["name"] for end in ("a", "b"))
    assert one != two


def test_the_chart_can_be_part_of_another_one(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: umbrella\nversion: 1.0.0\n", "utf-8")
    (tmp_path / "values.yaml").write_text(
        "global: {theirs: 1}\npagoda: {images: {registry: own}, operator: {replicas: 3}}\n", "utf-8"
    )
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "pagoda").symlink_to(CHART)
    (tmp_path / "charts" / "pagoda-crds").symlink_to(KIND_CHART)
    [deployment] = of_kind(render("--set", "pagoda.crds.install=false", chart=tmp_path), "Deployment")
    assert deployment["spec"]["replicas"] == 3


def test_the_arguments_are_those_that_the_operator_takes() -> None:
    from pagoda_operator.arguments import parse_arguments

    options = "watch.scope=Namespaces,watch.namespaces={one,two}"
    secrets = "images.pullSecrets[0].name=registry,images.pullSecrets[1].name=team.mirror"
    for given, pull_secrets in (((), ()), (("--set", f"{options},{secrets}"), ("registry", "team.mirror"))):
        operator = operator_container(render(*given))
        settings = parse_arguments([argument.replace("$(POD_NAME)", "pod") for argument in operator["args"]])
        assert settings.name == "pod"
        assert settings.images.pull_secrets == pull_secrets
