"""What a Deployment of the operator says of itself: its account, its Lease, what it serves and needs. Pure."""

from collections.abc import Iterable, Sequence

from pagoda_cli.doctor import names
from pagoda_cli.doctor.snapshot import Manifest, name_of, namespace_of


def account_of(operator: Manifest) -> str:
    """Return namespace/name of the account that it runs as."""
    return f"{namespace_of(operator)}/{operator['spec']['template']['spec'].get('serviceAccountName', 'default')}"


def served_namespaces(operator: Manifest) -> frozenset[str]:
    """Return the namespaces that an operator is confined to; empty: it serves all."""
    return frozenset(value for flag, value in _flags(operator) if flag == "--namespace")


def serves(operator: Manifest, namespace: str) -> bool:
    """Return whether an operator looks after the pools of a namespace."""
    served = served_namespaces(operator)
    return not served or namespace in served


def lease_of(operator: Manifest) -> tuple[str, str]:
    """Return namespace and name of the Lease by which the copies of an operator agree who leads."""
    flags = dict(_flags(operator))
    return flags.get("--lease-namespace", namespace_of(operator)), flags.get("--lease-name", name_of(operator))


def pull_secrets(operators: Iterable[Manifest], namespace: str) -> tuple[str, ...]:
    """Return the names of the Secrets with which pods of pools in a namespace are to pull their images."""
    serving = [operator for operator in operators if serves(operator, namespace)]
    found = [value for operator in serving for flag, value in _flags(operator) if flag == "--image-pull-secret"]
    return tuple(dict.fromkeys(found))


def _flags(operator: Manifest) -> "Iterable[tuple[str, str]]":
    for container in operator["spec"]["template"]["spec"]["containers"]:
        for argument in container.get("args") or ():
            flag, _, value = str(argument).partition("=")
            yield flag, value


def needed_rights(operator: Manifest, places: Sequence[str]) -> "Iterable[dict[str, str]]":
    """Return the attributes of each right that an operator needs, as access reviews take them."""
    served = served_namespaces(operator)
    for namespace in sorted(served) if served else ("",):
        if namespace and namespace not in places:
            continue
        for group, resource, verbs in names.OPERATOR_RIGHTS:
            kind, _, subresource = resource.partition("/")
            for verb in verbs:
                attributes = {"group": group, "resource": kind, "verb": verb, "namespace": namespace}
                yield attributes | ({"subresource": subresource} if subresource else {})
    lease_namespace, lease_name = lease_of(operator)
    for verb in names.LEASE_VERBS:
        attributes = {"group": "coordination.k8s.io", "resource": "leases", "verb": verb}
        yield attributes | {"namespace": lease_namespace, "name": lease_name}


def in_words(attributes: dict[str, str]) -> str:
    """Return a right as one says it."""
    subresource = f"/{attributes['subresource']}" if "subresource" in attributes else ""
    group = f".{attributes['group']}" if attributes["group"] else ""
    where = f"in namespace {attributes['namespace']}" if attributes["namespace"] else "in all namespaces"
    name = f" {attributes['name']}" if "name" in attributes else ""
    return f"{attributes['verb']} {attributes['resource']}{subresource}{group}{name} {where}"
