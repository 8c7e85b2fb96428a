"""The list of memcached nodes, as it stands in pool-nodes.json.

    {"nodes": [{"name": "chat-memcached-0", "address": "127.0.0.1:41211"}]}

Names place records (see rendezvous), addresses only say where a name can be reached now.
"""

import json
from dataclasses import dataclass
from typing import Any

_MAX_PORT = 65535
_MAX_NAME = 260  # characters: a host's name, which may end in a dot, and its port


@dataclass(frozen=True)
class PoolNode:
    """One memcached: a stable name, and `host:port` (`[::1]:11211` for IPv6)."""

    name: str
    address: str

    @property
    def host(self) -> str:
        """The address without its port and brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The TCP port."""
        return int(self.address.rpartition(":")[2])


def parse_nodes(text: str) -> tuple[PoolNode, ...]:
    """Read pool-nodes.json; no nodes is legal and means that the pool is off.

    Raises:
        ValueError: the message starts with the field's path.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"pool-nodes.json: not JSON: {error}") from error
    _check_keys(document, "pool-nodes.json", {"nodes"})
    entries = document["nodes"]
    if not isinstance(entries, list):
        raise ValueError(f"nodes: expected a list, got {type(entries).__name__}")
    nodes = tuple(_parse_node(entry, f"nodes[{index}]") for index, entry in enumerate(entries))
    seen: set[str] = set()
    for index, node in enumerate(nodes):
        if node.name in seen:
            raise ValueError(f"nodes[{index}].name: {node.name!r} stands twice; names place records and must differ")
        seen.add(node.name)
    return nodes


def _parse_node(entry: Any, path: str) -> PoolNode:
    _check_keys(entry, path, {"name", "address"})
    name, address = entry["name"], entry["address"]
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise ValueError(f"{path}.name: expected a name of 1 to {_MAX_NAME} printable characters")
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or (":" in host and not host.startswith("[")) or not _is_port(port):
        raise ValueError(f"{path}.address: expected host:port, got {address!r}")
    return PoolNode(name, address)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) <= _MAX_PORT


def _check_keys(value: Any, path: str, keys: set[str]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected an object, got {type(value).__name__}")
    for key in sorted(value.keys() ^ keys):
        raise ValueError(f"{path}.{key}: {'unknown field' if key in value else 'missing'}")
