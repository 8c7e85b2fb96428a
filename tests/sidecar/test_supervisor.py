"""The supervisor and the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from pagoda_sidecar import worker
from pagoda_sidecar.arguments import parse
from pagoda_sidecar.door import Door
from pagoda_sidecar.supervisor import Supervisor
from tests.sidecar.support import wait_until


def test_the_command_line_is_the_one_of_the_design_page() -> None:
    line = "--name p --host 0.0.0.0 --port 4001 --volume /v --secret-dir /s --settings-dir /t --ram-bytes 8589934592"
    settings = parse([*line.split(), "--disk-dir", "/d", "--disk-bytes", "1073741824"])
    assert (settings.name, settings.host, settings.port, settings.ram_bytes) == ("p", "0.0.0.0", 4001, 8 * 2**30)
    assert (settings.volume, settings.secret_dir, settings.settings_dir) == (Path("/v"), Path("/s"), Path("/t"))
    assert (settings.disk_dir, settings.disk_bytes) == (Path("/d"), 2**30)
    assert (settings.tenants_dir, settings.pool_tls_dir, settings.pool_auth_dir) == (None, None, None)


@pytest.mark.parametrize("change", [["--ram-bytes", "-1"], ["--ram-bytes", "8Gi"], ["--unknown", "1"], ["--ram", "1"]])
def test_a_wrong_command_line_is_a_usage_message(change: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = "--name p --host h --port 1 --volume /v --secret-dir /s --settings-dir /t --ram-bytes 0 --disk-bytes 0"
    with pytest.raises(SystemExit) as refused:
        parse([*line.split(), *change])
    assert refused.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_process_that_hashes_differently_keeps_its_tiers_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "self_test_address", lambda: bytes(32))
    line = "--name p --host h --port 1 --volume /v --secret-dir /s --settings-dir /t --ram-bytes 0 --disk-bytes 0"
    assert worker._config_problem(parse(line.split())).startswith("address self-test:")


def test_a_worker_that_always_fails_is_tried_again_and_never_ends_the_supervisor(tmp_path: Path) -> None:
    trail = tmp_path / "trail"
    body = f"open({str(trail)!r}, 'a').write('x'); raise SystemExit(3)"
    command = [sys.executable, "-c", body]
    script = (
        "from pagoda_sidecar.door import Door; from pagoda_sidecar.supervisor import Supervisor; "
        f"Supervisor({command!r}, lambda: Door('127.0.0.1', 0)).run()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: trail.exists() and len(trail.read_text()) >= 3)
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


def test_a_program_that_cannot_be_started_is_a_reason_not_an_exception() -> None:
    door = Door("127.0.0.1", 0)
    assert "No such file" in str(Supervisor(["/nowhere/at/all"], lambda: door)._attempt())
    door.close()
