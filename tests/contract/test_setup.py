"""The commands of the README on a machine with nothing prepared: what set-up checks, says and respects."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, for an environment that is not there yet."""
    spec = importlib.util.spec_from_file_location("pagoda_setup", ROOT / ".ci" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp")
    return module


@pytest.fixture
def steps(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `main` did, in order, instead of doing it."""
    done: list[str] = []
    for name in ("check_python", "check_machine", "ensure_debian_packages", "make_environment", "install"):
        monkeypatch.setattr(setup, name, lambda name=name: done.append(name))
    return done


def test_the_machine_is_checked_and_the_download_told_before_anything_is_installed(
    setup: ModuleType, steps: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup.main() == 0
    assert steps == ["check_python", "check_machine", "ensure_debian_packages", "make_environment", "install"]
    assert re.search(r"download about [\d.]+ GB", capsys.readouterr().out)


def test_a_second_run_installs_nothing_until_a_pin_changes(setup: ModuleType, steps: list[str]) -> None:
    setup.main()
    steps.clear()
    assert setup.main() == 0
    assert steps == ["check_python", "ensure_debian_packages"]
    setup.STAMP.write_text("of other pins")
    setup.main()
    assert "install" in steps


def test_an_old_python_is_refused_by_its_version(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 10, 4))
    with pytest.raises(setup.SetupError, match=r"Python ≥ 3\.11 is needed, .* is 3\.10\.4"):
        setup.check_python()


def test_too_little_disk_or_memory_is_refused_with_both_numbers(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 9.9e9}))
    with pytest.raises(setup.SetupError, match=r"10 GB of free disk .* 9\.9 GB are free"):
        setup.check_machine()
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 10e9}))
    monkeypatch.setattr("os.sysconf", lambda name: 5_900_000_000 if name == "SC_PHYS_PAGES" else 1)
    with pytest.raises(setup.SetupError, match=r"6 GB of memory are needed, this machine has 5\.9 GB"):
        setup.check_machine()


def test_who_is_not_root_gets_the_one_command_and_a_status_that_is_not_zero(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == "memcached" else f"/usr/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(setup, "check_machine", lambda: None)
    assert setup.main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "setup: needs Debian packages, please run: "
        "sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends memcached'"
    ]


def test_root_installs_what_is_missing_and_leaves_no_memcached_service(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    ran: list[tuple[str, bool]] = []
    monkeypatch.setattr("shutil.which", lambda name, path=None: None if name == "memcached" else f"/usr/bin/{name}")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(setup, "Path", lambda path: policy if path == "/usr/sbin/policy-rc.d" else Path(path))
    monkeypatch.setattr(
        "subprocess.run",
        lambda command, **_: ran.append((" ".join(command), policy.exists() and "101" in policy.read_text())),
    )
    setup.ensure_debian_packages()
    assert ran == [
        ("apt-get update -qq", True),
        ("apt-get install -y --no-install-recommends memcached", True),
        ("systemctl disable memcached", False),
    ]
    assert not policy.exists()


def test_who_interrupts_it_is_told_so_and_sees_no_traceback(
    setup: ModuleType, steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "install", interrupted)
    assert setup.main() == 130
    assert not setup.STAMP.exists()
    assert capsys.readouterr().err == "setup: interrupted; the next run goes on from here\n"


def test_an_environment_whose_making_was_interrupted_gets_its_pip(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True, timeout=60)
    (tmp_path / "bin" / "uv").touch()
    monkeypatch.setattr(setup, "PYTHON", python)
    setup.make_environment()
    subprocess.run([str(python), "-m", "pip", "--version"], check=True, timeout=60)


def test_a_torch_that_is_there_is_pinned_instead_of_ours(setup: ModuleType) -> None:
    pins = "numpy==2.0\nnvidia-cublas==13\ntorch==2.15.0\ntriton==4\n"
    assert setup.respecting_torch(pins, None) == pins
    assert setup.respecting_torch(pins, "2.9.0+cpu") == "numpy==2.0\ntorch==2.9.0+cpu\n"


def test_an_index_that_pip_is_configured_for_is_handed_to_uv(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    options = {"index-url": ["https://one.example"], "extra-index-url": ["https://two.example"]}
    monkeypatch.setattr(setup, "pip_option", lambda name: options.get(name, []))
    assert setup.pip_index_arguments() == [
        *("--index-url", "https://one.example", "--extra-index-url", "https://two.example"),
        *("--index-strategy", "unsafe-best-match"),
    ]
    monkeypatch.setenv("UV_INDEX_URL", "https://chosen.example")
    assert setup.pip_index_arguments() == []


def test_pip_installs_where_uv_is_not_there_or_fails(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(Path(command[0]).name)
        return subprocess.CompletedProcess(command, 1 if ran[-1] == "uv" else 0)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(setup, "pip_option", lambda name: [])
    setup.run_installer("a-package")
    assert ran == ["python"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").touch()
    setup.run_installer("a-package")
    assert ran == ["python", "uv", "python"]


def test_there_are_at_most_twelve_commands_and_help_lists_each() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    assert len(targets) <= 12
    said = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert [line.split()[1] for line in said.splitlines()] == targets


def test_ci_runs_exactly_the_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert lines[-1] == "exec make test"
