"""The router's flags. `pagoda_protocol.pool.arguments` builds them; a contract test holds the two together."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """Holds pods.json."""
    tenants_dir: Path | None
    """Holds tenants.json; None: no API keys are asked for."""
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
    add("--name", required=True, type=_text, help="name of this router, for its logs")
    add("--host", required=True, type=_text, help="address to listen on")
    add("--port", required=True, type=_port, help="port to listen on; 0: a free one")
    add("--model-name", required=True, type=_text, help='what clients put in "model"')
    add("--secret-dir", required=True, type=Path, help="folder with the file digest")
    add("--settings-dir", required=True, type=Path, help="folder with pods.json, read again when it changes")
    add("--tenants-dir", type=Path, default=None, help="folder with tenants.json; absent: no API keys")
    add("--policy", required=True, choices=POLICIES, help="how a pod is chosen")
    add("--block-tokens", required=True, type=_positive, help="tokens per block of the pool")
    add("--drain-seconds", required=True, type=_seconds, help="how long streams may go on after SIGTERM")
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> Settings:
    """Read the command line; a wrong one ends the process with status 2 and a line that names the flag."""
    return Settings(**vars(build_parser().parse_args(arguments)))


def _text(value: str) -> str:
    if not value.strip():
        raise argparse.ArgumentTypeError("expected a text that is not empty")
    return value


def _port(value: str) -> int:
    number = _integer(value)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {value}")
    return number


def _positive(value: str) -> int:
    number = _integer(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {value}")
    return number


def _seconds(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds of at least 0, found {value}")
    return number


def _integer(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {value}") from None
