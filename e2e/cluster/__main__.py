"""`python -m e2e.cluster`: build, up, down, seed. `make cluster` and `make cluster-down` call it."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.charts import prometheus_kinds
from e2e.crd import inference_extension

from . import binaries, clusters, debian
from .place import INDICES_OF_TESTS, MOST_CLUSTERS, SHARED_INDEX, place


def main() -> int:
    """Do what the command line asks for."""
    arguments = _parser().parse_args()
    try:
        arguments.action(arguments)
    except (
        binaries.BuildError,
        clusters.NodeRefusedError,
        clusters.StillMountedError,
        debian.MissingToolsError,
        TimeoutError,
    ) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"cluster: {' '.join(map(str, error.cmd))} failed: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    build = commands.add_parser("build", help="make the programs, or find them in the cache; print their folder")
    build.set_defaults(action=_build)
    prepare = commands.add_parser("prepare", help="make now what the stories would make later, seen by nobody")
    prepare.set_defaults(action=_prepare)
    seed = commands.add_parser("seed", help="fill the cache from a packed executable instead of building")
    seed.add_argument("packed", type=Path, help="the .xz file")
    seed.set_defaults(action=lambda arguments: binaries.seed(arguments.packed))
    for name, action, text in (("up", _up, "start what is not running"), ("down", _down, "end and remove everything")):
        command = commands.add_parser(name, help=text)
        own = f"{INDICES_OF_TESTS.stop} to {MOST_CLUSTERS - 1} stand beside it, those between are test runs' own"
        command.add_argument(
            "--index", type=int, choices=range(MOST_CLUSTERS), metavar="N", default=SHARED_INDEX,
            help=f"which one: 0 if not given; {own}",
        )  # fmt: skip
        command.set_defaults(action=action)
        if name == "up":
            command.add_argument("--node", action="store_true", help="with a node, so that pods run; needs root")
    return parser


def _build(_: argparse.Namespace) -> None:
    print(binaries.ensure())


def _prepare(_: argparse.Namespace) -> None:
    """Leave alone what the user brings; see chosen.py."""
    if shutil.which("go") is not None:
        _fetch_modules()
    if os.environ.get("KUBECONFIG"):
        return
    if not os.environ.get("KUBEBUILDER_ASSETS"):
        binaries.ensure()
        binaries.kwok()
    if os.geteuid() == 0:
        debian.install(debian.NODE_TOOLS)


def _fetch_modules() -> None:
    """Have Go's cache hold what stories read from modules, so that none of them waits for the network."""
    binaries.kwok_source()
    binaries.module(prometheus_kinds.MODULE)
    inference_extension.crds_file()


def _up(arguments: argparse.Namespace) -> None:
    where = place(arguments.index)
    programs = clusters.up(where, with_node=arguments.node)
    print(f"export KUBECONFIG={where.kubeconfig} PATH={programs}{os.pathsep}$PATH")


def _down(arguments: argparse.Namespace) -> None:
    clusters.down(place(arguments.index))


if __name__ == "__main__":
    sys.exit(main())
