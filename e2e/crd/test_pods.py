"""A podTemplate that is accepted makes pods that are accepted: nobody learns later what could be said at once."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from kubernetes import client, config

from crds.schema import spec_fields
from e2e.cluster.handle import Cluster
from e2e.crd.generated import right_specs
from e2e.crd.pools import CALL_SECONDS, Pools
from e2e.crd.test_agreement import once
from pagoda_operator.children.merge import merged
from pagoda_protocol.pool.spec import SpecError, parse_pool
from tests.protocol.pool.manifests import POD_TEMPLATE, changed

[SCHEMA] = [field.schema for field in spec_fields() if field.path == "spec.engine.podTemplate"]
LABELS = {"part": "engine"}
POD = {
    "metadata": {"labels": LABELS},
    "spec": {"containers": [{"name": "engine", "image": "engine", "env": [], "volumeMounts": []}], "volumes": []},
}


@pytest.fixture(scope="module")
def deployments(knowing: Cluster) -> Iterator[client.AppsV1Api]:
    with config.new_client_from_config(config_file=str(knowing.kubeconfig)) as api:
        yield client.AppsV1Api(api)


def try_to_create(deployments: client.AppsV1Api, namespace: str, pod_template: Any) -> bool:
    """Send the Deployment of such engines as a dry run; return whether the parser takes the podTemplate at all."""
    try:
        pool = parse_pool(changed("spec engine podTemplate", pod_template))
    except SpecError:
        return False
    template = merged(POD, pool.engine.pod_template)
    deployment = {
        "metadata": {"name": "engines"},
        "spec": {"selector": {"matchLabels": LABELS}, "template": template},
    }
    deployments.create_namespaced_deployment(
        namespace, deployment, dry_run="All", field_validation="Strict", _request_timeout=CALL_SECONDS
    )
    return True


def test_a_deployment_takes_a_whole_pod_template(deployments: client.AppsV1Api, pools: Pools) -> None:
    assert try_to_create(deployments, pools.namespace, POD_TEMPLATE)


@once
@given(pod_template=right_specs(SCHEMA))
def test_a_deployment_takes_every_pod_template_that_a_pool_may_have(
    deployments: client.AppsV1Api, pools: Pools, pod_template: Any
) -> None:
    try_to_create(deployments, pools.namespace, pod_template)
