"""The command line itself."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from pagoda_cli.main import main


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pagoda {version('pagoda-kv')}\n"


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "up" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"]])
def test_help_is_there_for_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 0
    assert "usage: pagoda" in capsys.readouterr().out


def test_only_commands_that_exist_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["top"])
    assert exit_info.value.code == 2
    assert "invalid choice: 'top'" in capsys.readouterr().err


def test_refusing_a_manifest_imports_nothing_that_is_slow() -> None:
    code = (
        "import sys; import pagoda_cli.up; "
        "print([m for m in ('torch', 'kopf', 'rich', 'aiohttp', 'grpc', 'pagoda_engine') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
