"""What the restricted Pod Security Standard asks of a pod, written down (Kubernetes' documentation, v1.34, baseline
included), so that a pod that would be refused is found without a cluster."""

from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_SECCOMP = {"RuntimeDefault", "Localhost"}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"


def violations(template: dict[str, Any]) -> list[str]:
    """Return what restricted Pod Security would refuse about a pod template."""
    spec = template["spec"]
    found = [*_of_pod(spec), *(f"annotation {key}" for key in _annotations(template) if key.startswith(_APPARMOR))]
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(group, ()):
            found += [f"{container['name']}: {what}" for what in _of_container(spec, container)]
    return found


def _annotations(template: dict[str, Any]) -> dict[str, str]:
    annotations: dict[str, str] = template["metadata"].get("annotations", {})
    return annotations


def _of_pod(spec: dict[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", ()):
        yield from (f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - _VOLUMES)
    context = spec.get("securityContext", {})
    yield from (
        field for field in ("sysctls", "seLinuxOptions", "windowsOptions", "appArmorProfile") if field in context
    )
    if 0 in (context.get("runAsUser"), *context.get("supplementalGroups", ())):
        yield "runs as root"


def _of_container(spec: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    context, pods_context = container.get("securityContext", {}), spec.get("securityContext", {})
    if context.get("privileged") or context.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    capabilities = context.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
        yield "has capabilities"
    if context.get("runAsNonRoot", pods_context.get("runAsNonRoot")) is not True or context.get("runAsUser") == 0:
        yield "may run as root"
    if context.get("seccompProfile", pods_context.get("seccompProfile", {})).get("type") not in _SECCOMP:
        yield "has no seccomp profile"
    yield from (
        field for field in ("procMount", "seLinuxOptions", "windowsOptions", "appArmorProfile") if field in context
    )
    if any("hostPort" in port for port in container.get("ports", ())):
        yield "takes a port of the host"
    yield from _of_handlers(container)


def _of_handlers(container: dict[str, Any]) -> Iterator[str]:
    handlers = [container.get(probe, {}) for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    handlers += container.get("lifecycle", {}).values()
    if any("host" in handler.get(kind, {}) for handler in handlers for kind in ("httpGet", "tcpSocket")):
        yield "asks another host"
