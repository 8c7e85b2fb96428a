"""The console script `pagoda`: reads the command line, nothing else.

A command's modules are imported when it runs, so that `--help` and a bad manifest answer in a fraction of a second.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DEFAULT_PORT = 8000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (the process's own by default) name; return the exit status."""
    options = _parser().parse_args(arguments)
    if options.version:
        print(f"pagoda {_version()}")
        return 0
    if options.command is None:
        _parser().print_help(sys.stderr)
        return 2
    from pagoda_cli.up import Request, up

    return up(Request(options.manifest, options.port, options.exact, options.state))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda",
        description="Serve language models with the KV cache as the main resource.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_up(commands)
    return parser


def _add_up(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "run an InferencePool on this machine, without Kubernetes"
    up = commands.add_parser(
        "up",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}: its engines with their sidecars, its memcached nodes and a "
        "router that speaks the OpenAI API on 127.0.0.1. Ctrl-C drains and ends everything, a second one at once.",
        epilog="exit status: 0 after a stop that was asked for, 1 when a part does not start or too little is left to "
        "go on, 2 when the manifest or this machine does not allow it.",
        allow_abbrev=False,
    )
    up.add_argument("manifest", type=Path, metavar="MANIFEST", help="the YAML file of one InferencePool")
    up.add_argument(
        "--port",
        type=_port,
        default=DEFAULT_PORT,
        help="the router's port (default %(default)s; 0: a free one)",
    )
    up.add_argument(
        "--exact",
        action="store_true",
        help="compute so that the same tokens come out wherever a prompt's KV came from; slower",
    )
    up.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="where secrets and run.json live (default: $XDG_STATE_HOME/pagoda/NAME, else ~/.local/state/pagoda/NAME)",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def _version() -> str:
    from importlib.metadata import version

    return version("pagoda-kv")
