"""The managed pool: a StatefulSet of plain memcached nodes, found by name through a headless Service.

A node that ends takes its items with it and is a counted miss from then on; there is nothing to drain or to wait for,
so it has no preStop and hardly any grace.
"""

from typing import Any

from pagoda_operator import names
from pagoda_operator.children import sizes, volumes
from pagoda_operator.children.inputs import Images, Manifest, Owner
from pagoda_operator.children.objects import (
    ANY_ADDRESS,
    container,
    container_port,
    part_manifest,
    pod_spec,
    pod_template,
    tcp_probe,
    workload_spec,
)
from pagoda_protocol.pool.arguments import MemcachedPlacement, memcached_command
from pagoda_protocol.pool.spec import ManagedPool

_GRACE_SECONDS = 10


def stateful_set(managed: ManagedPool, owner: Owner, images: Images) -> Manifest:
    """Return the StatefulSet of the pool's nodes, which start and end all at once."""
    spec = {
        **workload_spec(owner, names.MEMCACHED, managed.replicas, _template(managed, owner, images.memcached)),
        "serviceName": names.child_name(owner.name, names.MEMCACHED),
        "podManagementPolicy": "Parallel",
    }
    return part_manifest("apps/v1", "StatefulSet", owner, names.MEMCACHED, spec=spec)


def node_address(owner: Owner, ordinal: int) -> str:
    """Return where a node is found, whatever its address is today."""
    pod, service = names.memcached_pod_name(owner.name, ordinal), names.child_name(owner.name, names.MEMCACHED)
    return f"{pod}.{service}.{owner.namespace}.svc:{names.MEMCACHED_PORT}"


def _template(managed: ManagedPool, owner: Owner, image: str) -> dict[str, Any]:
    auth = volumes.node_auth(owner)
    placement = MemcachedPlacement(
        host=ANY_ADDRESS, port=names.MEMCACHED_PORT, user=None, auth_file=f"{auth.path}/{volumes.AUTH_FILE_KEY}"
    )
    port = names.MEMCACHED_PORT_NAME
    node = container(
        names.MEMCACHED_CONTAINER,
        image,
        memcached_command(managed, placement),
        sizes.memcached(managed),
        (auth,),
        ports=[container_port(port, names.MEMCACHED_PORT)],
        readinessProbe=tcp_probe(port, 5, 3),
        livenessProbe=tcp_probe(port, 10, 6),
    )
    spec = {
        **pod_spec(owner, names.MEMCACHED, _GRACE_SECONDS),
        "containers": [node],
        "volumes": volumes.volumes((auth,)),
    }
    return pod_template(owner, names.MEMCACHED, spec)
