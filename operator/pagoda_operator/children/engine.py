"""The engine's Deployment: pods of an engine and a native sidecar, which starts before the engine and ends after it.

    start   sidecar ──/ready: its tiers are decided──► engine ──/ready for the first time──► started
    serve   /ready: this pod can answer now            /health does not answer for a minute: a hung loop, started anew
    end     preStop drains the engine ──► TERM, the engine exits ──► TERM, the sidecar flushes and exits

Rule: nothing of the sidecar's takes the pod out of service. It has no readiness probe, for an engine serves without it.
"""

import math
from dataclasses import replace
from typing import Any

from pagoda_operator import names
from pagoda_operator.children import merge, sizes, volumes
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
from pagoda_protocol.pool.arguments import (
    EnginePlacement,
    SidecarPlacement,
    drain_command,
    engine_command,
    sidecar_command,
)
from pagoda_protocol.pool.spec import InferencePool

# Each is as long as the program itself may take: tests/contract/test_grace.py.
HAND_OVER_SECONDS = 30
"""For another pod to get what this one holds, in two passes, after the last answer has ended."""
FLUSH_SECONDS = 20
"""For the sidecar to put on disk, or into the pool, what only it holds; its supervisor ends it after as long."""

_EXIT_SECONDS = 5  # the engine's, between both
_PROGRESS_SECONDS = 60  # for a pod to be scheduled and its images to be pulled, beyond what start and end may take
_STARTUP_PERIOD_SECONDS = 2
_READINESS_PERIOD_SECONDS = 5
_LIVENESS_PERIOD_SECONDS = 10
_LIVENESS_FAILURES = 6
_HUNG_GRACE_SECONDS = 15  # a loop that hangs neither drains nor exits by itself
_HUNG_SIDECAR_GRACE_SECONDS = 25  # its supervisor kills a worker that does not end in 20
_REVISION_LABEL = "pod-template-hash"


def deployment(pool: InferencePool, owner: Owner, images: Images) -> Manifest:
    """Return the Deployment of the pool's engines."""
    surge, unavailable = pool.engine.rollout.numbers(pool.engine.resources.num_gpus, pool.replicas)
    spec = {
        **workload_spec(owner, names.ENGINE, pool.replicas, _template(pool, owner, images)),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
        },
        "paused": False,  # somebody's pause would hold every later rollout up
        "progressDeadlineSeconds": progress_seconds(pool),
    }
    return part_manifest("apps/v1", "Deployment", owner, names.ENGINE, spec=spec)


def grace_seconds(pool: InferencePool) -> int:
    """Return how long an engine pod may take to end."""
    return pool.drain_seconds + HAND_OVER_SECONDS + FLUSH_SECONDS + _EXIT_SECONDS


def progress_seconds(pool: InferencePool) -> int:
    """Return after how long without any progress a rollout is called stuck."""
    return pool.engine.startup_seconds + grace_seconds(pool) + _PROGRESS_SECONDS


def _template(pool: InferencePool, owner: Owner, images: Images) -> dict[str, Any]:
    common = volumes.present(
        volumes.shared(pool),
        volumes.pool_secret(pool, owner),
        volumes.settings(owner),
        volumes.tenants(pool),
        volumes.temporary(sizes.ENGINE_TMP_BYTES),
    )
    of_engine = volumes.present(volumes.shared_memory(pool))
    of_sidecar = volumes.present(volumes.disk(pool), volumes.pool_tls(pool), volumes.pool_auth(pool, owner))
    spec = {
        **pod_spec(owner, names.ENGINE, grace_seconds(pool), _REVISION_LABEL),
        "initContainers": [_sidecar(pool, owner, images.sidecar, (*common, *of_sidecar))],
        "containers": [_engine(pool, owner, pool.engine.image or images.engine, (*common, *of_engine))],
        "volumes": volumes.volumes((*common, *of_engine, *of_sidecar)),
    }
    return merge.merged(pod_template(owner, names.ENGINE, spec), pool.engine.pod_template)


def _engine(pool: InferencePool, owner: Owner, image: str, places: tuple[volumes.Place, ...]) -> dict[str, Any]:
    placement = EnginePlacement(
        name=POD_NAME,
        host=ANY_ADDRESS,
        port=names.ENGINE_PORT,
        secret_dir=volumes.pool_secret(pool, owner).path,
        threads=sizes.engine_threads(pool),
        volume=volumes.shared(pool).path,
        tenants_dir=volumes.path_of(volumes.tenants(pool)),
        settings_dir=volumes.settings(owner).path,
        device="cuda" if pool.engine.resources.num_gpus else "cpu",
    )
    port = names.ENGINE_PORT_NAME
    command = engine_command(pool, placement)
    environment = {**command.environment, "HOME": volumes.TMP_DIR}
    return container(
        names.ENGINE_CONTAINER,
        image,
        replace(command, environment=environment),
        sizes.engine(pool),
        places,
        ports=[container_port(port, names.ENGINE_PORT)],
        startupProbe=http_probe(
            port,
            "/ready",
            _STARTUP_PERIOD_SECONDS,
            math.ceil(pool.engine.startup_seconds / _STARTUP_PERIOD_SECONDS),
            terminationGracePeriodSeconds=_HUNG_GRACE_SECONDS,
        ),
        readinessProbe=http_probe(port, "/ready", _READINESS_PERIOD_SECONDS, 3),
        livenessProbe=http_probe(
            port,
            "/health",
            _LIVENESS_PERIOD_SECONDS,
            _LIVENESS_FAILURES,
            terminationGracePeriodSeconds=_HUNG_GRACE_SECONDS,
        ),
        lifecycle={"preStop": {"exec": {"command": list(drain_command(pool, placement).argv)}}},
    )


def _sidecar(pool: InferencePool, owner: Owner, image: str, places: tuple[volumes.Place, ...]) -> dict[str, Any]:
    placement = SidecarPlacement(
        name=POD_NAME,
        host=ANY_ADDRESS,
        port=names.SIDECAR_PORT,
        volume=volumes.shared(pool).path,
        secret_dir=volumes.pool_secret(pool, owner).path,
        settings_dir=volumes.settings(owner).path,
        tenants_dir=volumes.path_of(volumes.tenants(pool)),
        disk_dir=volumes.path_of(volumes.disk(pool)),
        pool_tls_dir=volumes.path_of(volumes.pool_tls(pool)),
        pool_auth_dir=volumes.path_of(volumes.pool_auth(pool, owner)),
    )
    port = names.SIDECAR_PORT_NAME
    return container(
        names.SIDECAR_CONTAINER,
        image,
        sidecar_command(pool, placement),
        sizes.sidecar(pool),
        places,
        restartPolicy="Always",
        ports=[container_port(port, names.SIDECAR_PORT)],
        startupProbe=http_probe(port, "/ready", 1, pool.engine.startup_seconds),
        livenessProbe=http_probe(
            port,
            "/health",
            _LIVENESS_PERIOD_SECONDS,
            _LIVENESS_FAILURES,
            terminationGracePeriodSeconds=_HUNG_SIDECAR_GRACE_SECONDS,
        ),
    )
