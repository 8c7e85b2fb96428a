"""InferencePools of one namespace, sent to a real API server, and what it says of those that it refuses."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config

from e2e.cluster.handle import Cluster

GROUP, VERSION, PLURAL = "pagoda-kv.io", "v1alpha1", "inferencepools"
RESOURCE = f"{PLURAL}.{GROUP}"
CRD = Path(__file__).resolve().parents[2] / "crds" / "pagoda-kv.io_inferencepools.yaml"
ESTABLISHED_SECONDS = 60.0
CALL_SECONDS = 10.0


class RefusedError(Exception):
    """The API server took it not: `fields` are those that it names, the text is all that it says."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        super().__init__(str(status.get("message")))
        self.code = status.get("code")
        causes = status.get("details", {}).get("causes", [])
        self.fields = tuple(str(cause.get("field")) for cause in causes)


@dataclass(frozen=True)
class Pools:
    """The pools of `namespace`."""

    api: client.CustomObjectsApi
    namespace: str

    def try_to_create(self, manifest: object) -> dict[str, Any]:
        """Return what would be stored, and store nothing; unknown fields are refused, as for kubectl."""
        return self._create(manifest, dry_run="All", field_validation="Strict")

    def create(self, manifest: object) -> dict[str, Any]:
        """Store a pool and return it as stored."""
        return self._create(manifest, field_validation="Strict")

    def create_loosely(self, manifest: object) -> dict[str, Any]:
        """Store a pool as a client does that says nothing about unknown fields."""
        return self._create(manifest)

    def patch(self, name: str, change: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `change` into a stored pool."""
        with _translated():
            return dict(
                self.api.patch_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, name, change, _request_timeout=CALL_SECONDS
                )
            )

    def patch_status(self, name: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `status` into a stored pool's, as the operator does."""
        with _translated():
            return dict(
                self.api.patch_namespaced_custom_object_status(
                    GROUP, VERSION, self.namespace, PLURAL, name, {"status": status}, _request_timeout=CALL_SECONDS
                )
            )

    def _create(self, manifest: object, **options: str) -> dict[str, Any]:
        with _translated():
            return dict(
                self.api.create_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, manifest, _request_timeout=CALL_SECONDS, **options
                )
            )


@contextmanager
def connected(cluster: Cluster, namespace: str) -> Iterator[Pools]:
    """Give the pools of `namespace`."""
    with config.new_client_from_config(config_file=str(cluster.kubeconfig)) as api:
        yield Pools(client.CustomObjectsApi(api), namespace)


def install(cluster: Cluster) -> None:
    """Have the API server know InferencePools as this tree has them."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    wait_established(cluster, RESOURCE)


def wait_established(cluster: Cluster, resource: str) -> None:
    """Wait until the API server serves a definition. (`kubectl wait` fails on one so young that it has no status.)"""
    end = time.monotonic() + ESTABLISHED_SECONDS
    while not _is_established(cluster.kubectl_json("get", f"crd/{resource}")):
        assert time.monotonic() < end, f"{resource} is not served after {ESTABLISHED_SECONDS} s"
        time.sleep(0.1)


def _is_established(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except client.ApiException as error:
        raise RefusedError(json.loads(error.body)) from error
