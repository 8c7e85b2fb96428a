"""The command line, as `pagoda_protocol.pool.arguments` builds it (docs/design.md)."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagoda_runtime.arguments import folder, port, text, whole_number


@dataclass(frozen=True)
class Arguments:
    """What the program was told."""

    name: str
    host: str
    port: int
    volume: Path
    secret_dir: Path
    settings_dir: Path
    ram_bytes: int
    tenants_dir: Path | None
    disk_dir: Path | None
    disk_bytes: int
    pool_tls_dir: Path | None
    pool_auth_dir: Path | None


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; every option is required, abbreviations are refused, so that a misspelt flag cannot pass."""
    parser = argparse.ArgumentParser(
        "pagoda_sidecar", description="Keeps KV blocks alive below the device.", allow_abbrev=False
    )
    parser.add_argument("--name", required=True, type=text, help="the pod's name, for logs")
    parser.add_argument("--host", required=True, type=text, help="where HTTP is served")
    parser.add_argument("--port", required=True, type=port, help="HTTP port; 0 takes a free one")
    parser.add_argument("--volume", required=True, type=folder, help="folder shared with the engine, memory-backed")
    parser.add_argument("--secret-dir", required=True, type=folder, help="folder with the pool secret")
    parser.add_argument("--settings-dir", required=True, type=folder, help="folder with pool-nodes.json")
    parser.add_argument(
        "--ram-bytes", required=True, type=whole_number(0), help="size of the RAM tier; 0 switches it off"
    )
    parser.add_argument("--tenants-dir", type=folder, help="folder with tenants.json; without it: nobody has a share")
    parser.add_argument("--disk-dir", type=folder, help="folder of the disk tier's own; without it: no disk tier")
    parser.add_argument(
        "--disk-bytes", required=True, type=whole_number(0), help="size of the disk tier; 0 switches it off"
    )
    parser.add_argument("--pool-tls-dir", type=folder, help="folder with ca.crt, tls.crt, tls.key; without it: no TLS")
    parser.add_argument("--pool-auth-dir", type=folder, help="folder with username and password of the pool's nodes")
    return parser


def parse(argv: Sequence[str] | None = None) -> Arguments:
    """Read the command line; exits with a usage message when it is wrong."""
    return Arguments(**vars(build_parser().parse_args(argv)))
