"""The program itself: its start, its refusals to start, its end by signal."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from pagoda_runtime.deadlines import Deadline
from tests.support.ports import free_port


def command(folder: Path, port: int) -> list[str]:
    return [
        sys.executable, "-m", "pagoda_router", "--name", "router", "--host", "127.0.0.1", "--port", str(port),
        "--model-name", "tiny", "--secret-dir", str(folder), "--settings-dir", str(folder), "--policy", "CacheAware",
        "--block-tokens", "16", "--drain-seconds", "5",
    ]  # fmt: skip


def test_it_serves_until_sigterm_and_ends_with_zero(tmp_path: Path) -> None:
    tmp_path.joinpath("digest").write_bytes(os.urandom(32))
    tmp_path.joinpath("pods.json").write_text('{"pods": []}')
    port = free_port()
    with subprocess.Popen(command(tmp_path, port), stderr=subprocess.PIPE, text=True) as process:
        deadline = Deadline(20)
        while not deadline.expired:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as response:
                    assert json.load(response) == {"status": "ok"}
                break
            except urllib.error.URLError:
                assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    assert "router listens" in errors
    assert "router drains" in errors


def test_what_is_missing_at_the_start_is_one_clear_line(tmp_path: Path) -> None:
    def refusal() -> str:
        done = subprocess.run(command(tmp_path, 0), capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "digest: cannot be read" in refusal()
    tmp_path.joinpath("digest").write_bytes(os.urandom(32))
    assert "pods.json" in refusal()
    tmp_path.joinpath("pods.json").write_text('{"pods": [{}]}')
    assert "pods[0]: expected exactly the fields" in refusal()
