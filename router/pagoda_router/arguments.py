"""The router's flags. `pagoda_protocol.pool.arguments` builds them; a contract test holds the two together."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagoda_runtime.arguments import folder, port, seconds, text, whole_number

POLICIES = ("CacheAware", "LeastLoaded", "RoundRobin")


@dataclass(frozen=True)
class Settings:
    """What one router process was told at its start."""

    name: str
    """Its own name, for logs."""
    host: str
    port: int
    """0: a free one."""
    model_name: str
    """What clients put in "model"."""
    secret_dir: Path
    """Holds the digest key alone."""
    settings_dir: Path
    """Holds live.json, perhaps, and pods.json unless pods are found in Kubernetes."""
    tenants_dir: Path | None
    """Holds tenants.json; None: no API keys are asked for."""
    pod_selector: str | None
    """Finds the engine pods in Kubernetes by their labels; None: pods.json names them."""
    namespace: str | None
    """Where these pods are; there exactly when `pod_selector` is."""
    policy: str
    block_tokens: int
    """Tokens per block: a match that is shorter is worth nothing."""
    drain_seconds: float
    """How long running streams may go on after SIGTERM."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; abbreviations are refused, so that a misspelt flag cannot pass."""
    parser = argparse.ArgumentParser(
        prog="python -m pagoda_router",
        description="Send OpenAI requests to the pod that holds their prefix.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", required=True, type=text, help="name of this router, for its logs")
    add("--host", required=True, type=text, help="address to listen on")
    add("--port", required=True, type=port, help="port to listen on; 0: a free one")
    add("--model-name", required=True, type=text, help='what clients put in "model"')
    add("--secret-dir", required=True, type=folder, help="folder with the file digest")
    add(
        "--settings-dir",
        required=True,
        type=folder,
        help="folder with live.json, and pods.json unless --pod-selector; read again when they change",
    )
    add("--tenants-dir", type=folder, default=None, help="folder with tenants.json; absent: no API keys")
    add("--pod-selector", type=text, default=None, help="find pods in Kubernetes by these labels (needs --namespace)")
    add("--namespace", type=text, default=None, help="where --pod-selector looks")
    add("--policy", required=True, choices=POLICIES, help="how a pod is chosen")
    add("--block-tokens", required=True, type=whole_number(1), help="tokens per block of the pool")
    add("--drain-seconds", required=True, type=seconds, help="how long streams may go on after SIGTERM")
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line; a wrong one ends the process with status 2 and a line that names the flag."""
    parser = build_parser()
    settings = Settings(**vars(parser.parse_args(arguments)))
    if (settings.pod_selector is None) != (settings.namespace is None):
        parser.error("--pod-selector and --namespace belong together: give both, or none for pods.json")
    return settings
