"""The router: a Deployment that finds the engine pods by itself, the Service clients speak to, and its right to look.

end     preStop: Services forget the pod while it still takes requests ──► TERM ──► running streams end ──► exit
"""

from typing import Any

from pagoda_operator import names
from pagoda_operator.children import sizes, volumes
from pagoda_operator.children.engine import progress_seconds
from pagoda_operator.children.inputs import Images, Manifest, Owner
from pagoda_operator.children.objects import (
    ANY_ADDRESS,
    POD_NAME,
    container,
    container_port,
    http_probe,
    part_manifest,
    pod_spec,
    pod_template,
    workload_spec,
)
from pagoda_protocol.pool.arguments import RouterPlacement, router_command
from pagoda_protocol.pool.spec import InferencePool

_START_SECONDS = 120  # a starved node takes its time to start a process; until then nobody asks whether it hangs
_FORGET_SECONDS = 5  # until the last node has stopped sending new connections
_EXIT_SECONDS = 5
_REVISION_LABEL = "pod-template-hash"


def deployment(pool: InferencePool, owner: Owner, images: Images) -> Manifest:
    """Return the Deployment of the pool's routers; a new one is ready before an old one goes."""
    spec = {
        **workload_spec(owner, names.ROUTER, pool.routing.replicas, _template(pool, owner, images.router)),
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "paused": False,  # somebody's pause would hold every later rollout up
        "progressDeadlineSeconds": progress_seconds(pool),  # a router is ready only once an engine is
    }
    return part_manifest("apps/v1", "Deployment", owner, names.ROUTER, spec=spec)


def service(owner: Owner) -> Manifest:
    """Return the Service that clients speak to."""
    port = {
        "name": names.ROUTER_PORT_NAME,
        "port": names.ROUTER_SERVICE_PORT,
        "targetPort": names.ROUTER_PORT_NAME,
        "protocol": "TCP",
    }
    spec = {"type": "ClusterIP", "selector": names.selector(owner.name, names.ROUTER), "ports": [port]}
    return part_manifest("v1", "Service", owner, names.ROUTER, spec=spec)


def roles(owner: Owner) -> tuple[Manifest, Manifest]:
    """Return the right to see the namespace's pods, and its binding to the router's account."""
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    name = names.child_name(owner.name, names.ROUTER)
    group = "rbac.authorization.k8s.io"
    return (
        part_manifest(f"{group}/v1", "Role", owner, names.ROUTER, rules=rules),
        part_manifest(
            f"{group}/v1",
            "RoleBinding",
            owner,
            names.ROUTER,
            roleRef={"apiGroup": group, "kind": "Role", "name": name},
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}],
        ),
    )


def _template(pool: InferencePool, owner: Owner, image: str) -> dict[str, Any]:
    places = volumes.present(
        volumes.digest_key(pool, owner),
        volumes.live_settings(owner),
        volumes.tenants(pool),
        volumes.temporary(sizes.ROUTER_TMP_BYTES),
    )
    spec = {
        **pod_spec(owner, names.ROUTER, _FORGET_SECONDS + pool.drain_seconds + _EXIT_SECONDS, _REVISION_LABEL),
        "automountServiceAccountToken": True,
        "containers": [_container(pool, owner, image, places)],
        "volumes": volumes.volumes(places),
    }
    return pod_template(owner, names.ROUTER, spec)


def _container(pool: InferencePool, owner: Owner, image: str, places: tuple[volumes.Place, ...]) -> dict[str, Any]:
    placement = RouterPlacement(
        name=POD_NAME,
        host=ANY_ADDRESS,
        port=names.ROUTER_PORT,
        secret_dir=volumes.digest_key(pool, owner).path,
        settings_dir=volumes.live_settings(owner).path,
        tenants_dir=volumes.path_of(volumes.tenants(pool)),
        pod_selector=names.selector_text(owner.name, names.ENGINE),
        namespace=owner.namespace,
    )
    port = names.ROUTER_PORT_NAME
    return container(
        names.ROUTER_CONTAINER,
        image,
        router_command(pool, placement),
        sizes.router(),
        places,
        ports=[container_port(port, names.ROUTER_PORT)],
        startupProbe=http_probe(port, "/health", 2, _START_SECONDS // 2),
        readinessProbe=http_probe(port, "/ready", 2, 2),
        livenessProbe=http_probe(port, "/health", 10, 6, terminationGracePeriodSeconds=_EXIT_SECONDS),
        lifecycle={"preStop": {"sleep": {"seconds": _FORGET_SECONDS}}},
    )
