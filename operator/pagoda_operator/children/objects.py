"""What all manifests have in common: their head, and the shape of restricted pods and their containers."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagoda_operator import names
from pagoda_operator.children.inputs import Manifest, Owner
from pagoda_operator.children.sizes import Size
from pagoda_operator.children.volumes import Place
from pagoda_protocol.pool.arguments import Command

ANY_ADDRESS = "0.0.0.0"
POD_NAME_VARIABLE = "PAGODA_POD_NAME"
POD_NAME = f"$({POD_NAME_VARIABLE})"
"""Stands for the pod's name in an argument list; the kubelet puts it in."""

_USER_ID = 65532


def manifest(api_version: str, kind: str, owner: Owner, name: str, labels: Mapping[str, str], **rest: Any) -> Manifest:
    """Return an object of the pool's; it is gone with the pool, and never holds the pool's deletion up."""
    owner_reference = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    metadata = {
        "name": name,
        "namespace": owner.namespace,
        "labels": dict(labels),
        "ownerReferences": [owner_reference],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def part_manifest(api_version: str, kind: str, owner: Owner, part: str, **rest: Any) -> Manifest:
    """Return an object of a part's, under the part's name."""
    labels = names.labels(owner.name, part)
    return manifest(api_version, kind, owner, names.child_name(owner.name, part), labels, **rest)


def pod_spec(owner: Owner, part: str, grace_seconds: int, *revision_keys: str) -> dict[str, Any]:
    """Return what every pod of ours says: restricted Pod Security admits it, and it has no rights on the API.

    `revision_keys` are labels by which the pods of one revision are told from those of another.
    """
    return {
        "serviceAccountName": names.child_name(owner.name, part),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": grace_seconds,
        "topologySpreadConstraints": [
            _spread(owner, part, key, revision_keys)
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ],
    }


def container(
    name: str, image: str, command: Command, size: Size, places: Sequence[Place], **rest: Any
) -> dict[str, Any]:
    """Return a container that runs `command` and can write nowhere but to its places."""
    program, arguments = _split(command.argv)
    return {
        "name": name,
        "image": image,
        "command": program,
        "args": arguments,
        **_environment(command),
        "resources": size.resources(),
        "volumeMounts": [place.mount() for place in places],
        # Its last words then stand in the pod's status, and from there in the pool's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        **rest,
    }


def http_probe(port_name: str, path: str, period_seconds: int, failures: int, **rest: int) -> dict[str, Any]:
    """Return a probe that waits for an answer until the next one is due."""
    return _probe({"httpGet": {"path": path, "port": port_name}}, period_seconds, failures, rest)


def tcp_probe(port_name: str, period_seconds: int, failures: int) -> dict[str, Any]:
    """Return a probe that is content with a connection."""
    return _probe({"tcpSocket": {"port": port_name}}, period_seconds, failures, {})


def workload_spec(owner: Owner, part: str, replicas: int, pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Deployments and StatefulSets have in common; `pod` is the template."""
    return {
        "replicas": replicas,
        "selector": {"matchLabels": names.selector(owner.name, part)},
        "template": dict(pod),
    }


def pod_template(owner: Owner, part: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template of a part's pods."""
    return {"metadata": {"labels": names.labels(owner.name, part)}, "spec": dict(spec)}


def service_account(owner: Owner, part: str, pull_secrets: Sequence[str]) -> Manifest:
    """Return an account of the part's own, so that nobody's rights are given to it by chance.

    New pods get its pull secrets from the API server. In the pods' templates another one would roll every pod.
    """
    # Kubernetes gives the list one owner, so it is claimed only where there is something to say: without a name, what
    # a person or the cluster has put there stays.
    references = {"imagePullSecrets": [{"name": name} for name in pull_secrets]} if pull_secrets else {}
    return part_manifest("v1", "ServiceAccount", owner, part, automountServiceAccountToken=False, **references)


def disruption_budget(owner: Owner, part: str) -> Manifest:
    """Return the rule that evictions take one pod at a time, and broken ones whenever they like."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(owner.name, part)},
    }
    return part_manifest("policy/v1", "PodDisruptionBudget", owner, part, spec=spec)


def headless_service(owner: Owner, part: str, ports: Mapping[str, int]) -> Manifest:
    """Return a name for each of a part's pods, ready or not: who speaks to them judges that by itself."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(owner.name, part),
        "ports": [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in ports.items()],
    }
    return part_manifest("v1", "Service", owner, part, spec=spec)


def container_port(name: str, port: int) -> dict[str, Any]:
    """Return a container's port; it is found by its name."""
    return {"name": name, "containerPort": port, "protocol": "TCP"}


def _environment(command: Command) -> dict[str, Any]:
    """Return the variables that a command wants, the pod's name where it stands in an argument."""
    variables: list[dict[str, Any]] = []
    if POD_NAME in command.argv:
        variables.append({"name": POD_NAME_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    variables += [{"name": key, "value": _literal(value)} for key, value in sorted(command.environment.items())]
    return {"env": variables} if variables else {}


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return program and arguments; `python -m MODULE` is a program."""
    num_words = 3 if argv[1:2] == ("-m",) else 1
    words = [_literal(word) for word in argv]
    return words[:num_words], words[num_words:]


def _literal(word: str) -> str:
    """Keep the kubelet from putting a variable's value into what is not ours."""
    return word if word == POD_NAME else word.replace("$", "$$")


def _probe(action: Mapping[str, Any], period_seconds: int, failures: int, rest: Mapping[str, int]) -> dict[str, Any]:
    return {
        **action,
        "periodSeconds": period_seconds,
        "timeoutSeconds": period_seconds,
        "failureThreshold": failures,
        **rest,
    }


def _spread(owner: Owner, part: str, topology_key: str, revision_keys: Sequence[str]) -> dict[str, Any]:
    """Wish that a part's pods lie apart, as far as that can be."""
    return {
        "maxSkew": 1,
        "topologyKey": topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": names.selector(owner.name, part)},
        **({"matchLabelKeys": list(revision_keys)} if revision_keys else {}),
    }
