"""Who the pods are: their records, and those of `pods.json`.

A pod's identity is its whole record. A record that keeps its name and changes an address is another pod, of which
nothing is believed; so is another name, or another pod of Kubernetes, at a known address.
"""

import json
from dataclasses import dataclass
from typing import Any

PODS_FILE = "pods.json"
_FIELDS = ("name", "engine", "sidecar")


class PodsError(ValueError):
    """pods.json is not what it should be; the message names the field."""


@dataclass(frozen=True, order=True)
class Pod:
    """One engine and its sidecar, by `host:port`."""

    name: str
    engine: str
    sidecar: str
    uid: str = ""
    """Kubernetes' own: a pod made anew has another one. Empty: it is not of Kubernetes."""


def parse_pods(text: str) -> tuple[Pod, ...]:
    """Read `{"pods": [{"name": "chat-0", "engine": "127.0.0.1:4000", "sidecar": "127.0.0.1:4001"}]}`.

    An empty list is legal: a pool scaled to nothing.

    Raises:
        PodsError: naming the field that is wrong.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PodsError(f"pods file: not JSON: {error}") from error
    if not isinstance(document, dict) or set(document) != {"pods"} or not isinstance(document["pods"], list):
        raise PodsError('pods file: expected one object with the list "pods"')
    pods: list[Pod] = []
    for index, entry in enumerate(document["pods"]):
        path = f"pods[{index}]"
        if not isinstance(entry, dict) or set(entry) != set(_FIELDS):
            raise PodsError(f'{path}: expected exactly the fields "name", "engine" and "sidecar"')
        name = entry["name"]
        if not isinstance(name, str) or not _is_name(name):
            raise PodsError(f"{path}.name: expected 1 to 253 visible ASCII characters without ';' and '='")
        if any(pod.name == name for pod in pods):
            raise PodsError(f"{path}.name: {name!r} is there twice")
        pods.append(Pod(name, _address(entry, path, "engine"), _address(entry, path, "sidecar")))
    return tuple(pods)


def _is_name(name: str) -> bool:
    # A name goes into a header as `pod=NAME;…`.
    return 1 <= len(name) <= 253 and all("!" <= character <= "~" and character not in ";=" for character in name)


def _address(entry: dict[str, Any], path: str, name: str) -> str:
    value = entry[name]
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    if not host or not is_port or any(character in host for character in "/@?# "):
        raise PodsError(f'{path}.{name}: expected "host:port", found {value!r}')
    return str(value)
