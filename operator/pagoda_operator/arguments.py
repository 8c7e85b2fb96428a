"""The operator's flags; the chart's Deployment gives them, and the stories of e2e/operator start it with just those."""

import argparse
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_operator.children import Images, PolicyPeers
from pagoda_protocol.pool.reader import FieldError
from pagoda_protocol.pool.texts import OBJECT_NAME
from pagoda_runtime.arguments import port, text, whole_number


@dataclass(frozen=True)
class Settings:
    """What one operator process was told at its start."""

    name: str
    """Its own name, for its logs, its events and its candidacy."""
    namespaces: tuple[str, ...]
    """Whose pools it looks after; none: those of the whole cluster."""
    lease_namespace: str
    lease_name: str
    """Processes of one Lease never work at the same time."""
    host: str
    port: int
    """Of health and metrics; 0: a free one."""
    images: Images
    """Default images of the parts, and what they are pulled with."""
    peers: PolicyPeers
    """Whom the pools' NetworkPolicies let in beside their own parts."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; abbreviations are refused, so that a misspelt flag cannot pass."""
    parser = argparse.ArgumentParser(
        prog="python -m pagoda_operator",
        description="Make, scale, drain and report what InferencePools ask for.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--name", type=text, default=socket.gethostname(), help="name of this process; default: the host's, a pod's own"
    )
    add(
        "--namespace", dest="namespaces", action="append", type=text, default=[], metavar="NAMESPACE",
        help="look after pools of this namespace alone; may be repeated; absent: the whole cluster",
    )  # fmt: skip
    add("--lease-namespace", required=True, type=text, help="namespace of the Lease that says who leads")
    add("--lease-name", default="pagoda-operator", type=text, help="its name")
    add("--host", default="0.0.0.0", type=text, help="address of /health, /ready and /metrics")
    add("--port", default=8080, type=port, help="their port; 0: a free one")
    for part in ("engine", "sidecar", "router", "memcached"):
        add(f"--{part}-image", required=True, type=text, help=f"image of a pool's {part}, by tag or digest")
    add(
        "--image-pull-secret", dest="pull_secrets", action="append", type=_object_name, default=[], metavar="NAME",
        help="Secret with which pods of pools pull their images, one of this name in each pool's namespace; "
        "may be repeated",
    )  # fmt: skip
    for whose, what in (("metrics", "pods scrape metrics"), ("operator", "the operator runs")):
        add(
            f"--{whose}-namespace", dest=f"{whose}_namespace", action="append", type=_label, default=[],
            metavar="LABEL=VALUE",
            help=f"label of the namespace in which {what}, to be let in by NetworkPolicies; may be repeated",
        )  # fmt: skip
    add(
        "--api-server-port", dest="api_server_ports", action="append", type=whole_number(1, 65535), default=[],
        metavar="PORT", help="port on which pods reach the API server, for NetworkPolicies; default: 443 and 6443",
    )  # fmt: skip
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line; a wrong one ends the process with status 2 and a line that names the flag."""
    given = build_parser().parse_args(arguments)
    peers = PolicyPeers(dict(given.operator_namespace), dict(given.metrics_namespace))
    if given.api_server_ports:
        peers = PolicyPeers(peers.operator_namespace, peers.metrics_namespace, tuple(given.api_server_ports))
    return Settings(
        name=given.name,
        namespaces=tuple(dict.fromkeys(given.namespaces)),
        lease_namespace=given.lease_namespace,
        lease_name=given.lease_name,
        host=given.host,
        port=given.port,
        images=Images(
            given.engine_image,
            given.sidecar_image,
            given.router_image,
            given.memcached_image,
            pull_secrets=tuple(dict.fromkeys(given.pull_secrets)),
        ),
        peers=peers,
    )


def _object_name(value: str) -> str:
    try:
        return OBJECT_NAME(value)
    except FieldError as error:
        raise argparse.ArgumentTypeError(f"the name {error}") from error


def _label(value: str) -> tuple[str, str]:
    key, separator, wanted = value.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"expected LABEL=VALUE, got {value!r}")
    return key, wanted
