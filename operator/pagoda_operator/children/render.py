"""All children of a pool, in the order in which they are to be applied: what a pod needs to start comes before it."""

from pagoda_operator import names
from pagoda_operator.children import engine, live, memcached, policies, router
from pagoda_operator.children.inputs import Images, Manifest, Owner, Seen
from pagoda_operator.children.objects import disruption_budget, headless_service, service_account
from pagoda_operator.children.tiers import managed_of
from pagoda_protocol.pool.spec import InferencePool


def render(pool: InferencePool, owner: Owner, images: Images, seen: Seen) -> tuple[Manifest, ...]:
    """Return what the pool wants to be there, but for the Secrets that are made for it."""
    parts = [part for part in names.PARTS if part != names.MEMCACHED or managed_of(pool) is not None]
    return (
        *(service_account(owner, part, images.pull_secrets) for part in parts),
        *router.roles(owner),
        live.config_map(pool, owner, seen.live),
        *policies.network_policies(pool, owner, seen.policy),
        *_services(pool, owner),
        *(disruption_budget(owner, part) for part in parts),
        *_workloads(pool, owner, images),
    )


def _services(pool: InferencePool, owner: Owner) -> list[Manifest]:
    engine_ports = {names.ENGINE_PORT_NAME: names.ENGINE_PORT, names.SIDECAR_PORT_NAME: names.SIDECAR_PORT}
    services = [headless_service(owner, names.ENGINE, engine_ports), router.service(owner)]
    if managed_of(pool) is not None:
        memcached_ports = {names.MEMCACHED_PORT_NAME: names.MEMCACHED_PORT}
        services.append(headless_service(owner, names.MEMCACHED, memcached_ports))
    return services


def _workloads(pool: InferencePool, owner: Owner, images: Images) -> list[Manifest]:
    deployments = [engine.deployment(pool, owner, images), router.deployment(pool, owner, images)]
    managed = managed_of(pool)
    return [memcached.stateful_set(managed, owner, images), *deployments] if managed is not None else deployments
