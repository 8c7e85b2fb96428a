import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.operator.children.pod_security import violations
from tests.operator.children.pools import POOLS, containers_of, templates_of

TEMPLATES = {f"{name} {part}": template for name in POOLS for part, template in templates_of(POOLS[name]).items()}
everywhere = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)


@everywhere
def test_restricted_pod_security_admits_every_pod(template: dict[str, Any]) -> None:
    assert violations(template) == []


def _context(template: dict[str, Any]) -> dict[str, Any]:
    context: dict[str, Any] = template["spec"]["containers"][0]["securityContext"]
    return context


@pytest.mark.parametrize(
    "spoil",
    [
        lambda template: template["spec"].update(hostNetwork=True),
        lambda template: template["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
        lambda template: template["spec"]["securityContext"].pop("runAsNonRoot"),
        lambda template: template["spec"]["securityContext"].pop("seccompProfile"),
        lambda template: template["spec"]["securityContext"].update(runAsUser=0),
        lambda template: template["metadata"].update(
            annotations={"container.apparmor.security.beta.kubernetes.io/engine": "unconfined"}
        ),
        lambda template: _context(template).pop("capabilities"),
        lambda template: _context(template)["capabilities"].update(add=["SYS_ADMIN"]),
        lambda template: _context(template).update(privileged=True),
        lambda template: _context(template).pop("allowPrivilegeEscalation"),
        lambda template: template["spec"]["containers"][0]["ports"][0].update(hostPort=8000),
        lambda template: template["spec"]["containers"][0]["livenessProbe"]["httpGet"].update(host="10.0.0.1"),
    ],
)
def test_the_check_finds_what_restricted_pod_security_refuses(spoil: Callable[[dict[str, Any]], None]) -> None:
    template = copy.deepcopy(TEMPLATES["least engine"])
    spoil(template)
    assert violations(template), "it is clean but for this"


@everywhere
def test_no_container_can_write_to_its_root_or_to_what_it_is_told(template: dict[str, Any]) -> None:
    sources = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    for container in containers_of(template).values():
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for place in container["volumeMounts"]:
            is_told = {"secret", "configMap"} & set(sources[place["name"]])
            assert place.get("readOnly", False) or not is_told, place


@everywhere
def test_only_routers_get_a_token_for_the_api(template: dict[str, Any]) -> None:
    is_router = template["metadata"]["labels"]["pagoda-kv.io/part"] == "router"
    assert template["spec"]["automountServiceAccountToken"] is is_router


def test_a_router_sees_the_digest_key_alone_and_no_list_of_nodes() -> None:
    for name in POOLS:
        volumes = {volume["name"]: volume for volume in templates_of(POOLS[name])["router"]["spec"]["volumes"]}
        assert volumes["pagoda-secret"]["secret"]["items"] == [{"key": "digest", "path": "digest"}]
        assert volumes["pagoda-live"]["configMap"]["items"] == [{"key": "live.json", "path": "live.json"}]


def test_of_the_nodes_password_only_the_sidecar_and_the_nodes_know() -> None:
    templates = templates_of(POOLS["all-tiers"])
    secret = "all-tiers-mc-0f1e2d3c"
    knowing = {
        container["name"]
        for template in templates.values()
        for container in containers_of(template).values()
        for volume in template["spec"]["volumes"]
        if volume.get("secret", {}).get("secretName") == secret
        and volume["name"] in {place["name"] for place in container["volumeMounts"]}
    }
    assert knowing == {"sidecar", "memcached"}
