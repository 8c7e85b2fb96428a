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
    return _COMMANDS[options.command](options)


def _up(options: argparse.Namespace) -> int:
    from pagoda_cli.up import Request, up

    return up(Request(options.manifest, options.port, options.exact, options.state))


def _doctor(options: argparse.Namespace) -> int:
    from pagoda_cli.doctor.command import Request, doctor

    return doctor(Request(options.namespace, options.kubeconfig, options.context, options.json))


_COMMANDS = {"up": _up, "doctor": _doctor}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda",
        description="Serve language models with the KV cache as the main resource.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_up(commands)
    _add_doctor(commands)
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


def _add_doctor(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "name what is broken in a cluster that serves InferencePools, and what to do about it"
    doctor = commands.add_parser(
        "doctor",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. It reads, and changes nothing; what you may not read it says "
        "and leaves out. docs/doctor.md explains every code.",
        epilog="exit status: 0 when nothing is broken, 1 with warnings, 2 with errors, 3 when the cluster cannot be "
        "read.",
        allow_abbrev=False,
    )
    doctor.add_argument("-n", "--namespace", metavar="NS", help="look at the pools of this namespace (default: of all)")
    doctor.add_argument("--context", metavar="CONTEXT", help="the kubeconfig's context (default: its current one)")
    doctor.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, or the pod's own account"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def _version() -> str:
    from importlib.metadata import version

    return version("pagoda-kv")
