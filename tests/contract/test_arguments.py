"""The argument lists that a pool's spec turns into are exactly what each program's parser takes."""

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pagoda_engine import drain
from pagoda_protocol.pool.arguments import (
    Command,
    EnginePlacement,
    RouterPlacement,
    SidecarPlacement,
    drain_command,
    engine_command,
    router_command,
    sidecar_command,
)
from pagoda_protocol.pool.spec import parse_pool
from tests.support.pods import manifest

PROGRAMS = ("engine", "sidecar", "router")


def parser_of(program: str) -> argparse.ArgumentParser:
    module = importlib.import_module(f"pagoda_{program}.arguments")
    parser: argparse.ArgumentParser = module.build_parser()
    return parser


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings} - {"-h", "--help", "--version"}


def commands() -> Mapping[str, list[Command]]:
    package = parse_pool(manifest())
    path = parse_pool(manifest(source={"local": {"path": "/models/llama"}}))
    engine = EnginePlacement("chat-0", "127.0.0.1", 1, "/secret", 2, "/volume", "/tenants", "/settings", exact=True)
    bare = SidecarPlacement("chat-0", "127.0.0.1", 1, "/volume", "/secret", "/settings", ram_bytes=0)
    sidecar = replace(
        bare, tenants_dir="/tenants", disk_dir="/disk", pool_tls_dir="/tls", pool_auth_dir="/auth", ram_bytes=None
    )
    router = RouterPlacement("chat", "127.0.0.1", 1, "/secret", "/settings", "/tenants")
    return {
        "engine": [
            engine_command(package, engine),
            engine_command(path, replace(engine, volume=None, tenants_dir=None, settings_dir=None, exact=False)),
        ],
        "sidecar": [sidecar_command(package, sidecar), sidecar_command(package, bare)],
        "router": [
            router_command(package, replace(router, tenants_dir=None)),
            router_command(package, replace(router, pod_selector="a=b,c=d", namespace="models")),
        ],
    }


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_takes_the_arguments_built_for_it(program: str) -> None:
    for command in commands()[program]:
        assert command.argv[1:3] == ("-m", f"pagoda_{program}")
        values: dict[str, Any] = vars(parser_of(program).parse_args(list(command.argv[3:])))
        assert values["name"], "parsed"


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_flag_of_a_program_is_one_that_the_builder_knows(program: str) -> None:
    built = {word for command in commands()[program] for word in command.argv if word.startswith("--")}
    assert flags_of(parser_of(program)) == built


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_flag_nobody_knows_is_refused(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*commands()[program][0].argv[3:], "--no-such-flag", "1"]
    with pytest.raises(SystemExit) as stop:
        parser_of(program).parse_args(argv)
    assert stop.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


def test_the_drain_takes_the_arguments_built_for_it() -> None:
    command = drain_command(parse_pool(manifest()), EnginePlacement("chat-0", "0.0.0.0", 8000, "/secret", 2))
    assert command.argv[1:3] == ("-m", "pagoda_engine.drain")
    values = vars(drain.build_parser().parse_args(list(command.argv[3:])))
    assert (values["port"], str(values["secret_dir"]), values["seconds"]) == (8000, "/secret", 5.0)
    assert flags_of(drain.build_parser()) == {word for word in command.argv if word.startswith("--")}
