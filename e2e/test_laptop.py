"""Stories of a person with one machine: the real programs, the real model, the real memcached.

One pool serves all stories but the demo, which brings its own. They need the packages of `make setup`.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

REPOSITORY = Path(__file__).resolve().parent.parent
MANIFEST = REPOSITORY / "examples" / "laptop.yaml"
MODEL = "smollm2-135m-instruct"
START_SECONDS = 240.0
EVENT_SECONDS = 90.0
DEMO_SECONDS = 540.0

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("memcached") is None, reason="memcached is not installed; `make setup` says how"),
]


class LaptopPool:
    """A running `pagoda up examples/laptop.yaml`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log = folder / "log.txt"
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "pagoda_cli", "up", str(MANIFEST)),
                    *("--port", "0", "--state", str(self.state)),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8")

    def record(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.state / "run.json").read_text("utf-8")))
        except FileNotFoundError:
            return {"ready": False, "parts": []}

    def part(self, kind: str, name: str) -> dict[str, Any]:
        return next(part for part in self.record()["parts"] if (part["kind"], part["name"]) == (kind, name))

    def until(self, condition: Callable[[], bool], what: str, seconds: float = EVENT_SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.said[-5000:]
            assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s:\n{self.said[-5000:]}"
            time.sleep(0.2)

    def client(self) -> OpenAI:
        return OpenAI(base_url=self.record()["url"], api_key="none", max_retries=0, timeout=EVENT_SECONDS)

    def ask(self, text: str, max_tokens: int = 8) -> str:
        with self.client() as client:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=max_tokens, temperature=0
            )
        return answer.choices[0].message.content or ""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaptopPool]:
    running = LaptopPool(tmp_path_factory.mktemp("laptop"))
    try:
        running.until(lambda: bool(running.record()["ready"]), "ready", START_SECONDS)
        yield running
    finally:
        running.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(EVENT_SECONDS)
        running.process.kill()
        running.process.wait()


def test_the_start_tells_of_progress_and_of_every_part_with_its_port(pool: LaptopPool) -> None:
    for part in pool.record()["parts"]:
        title = f"{part['kind']} {part['name']}"
        assert re.search(rf"^pagoda │ {title}: ready on 127\.0\.0\.1:{part['port']} after ", pool.said, re.MULTILINE)
    for pod in ("chat-0", "chat-1"):
        assert re.search(rf"^engine {pod} │ \S+ 100%$", pool.said, re.MULTILINE)
    assert f"pool chat is up at {pool.record()['url']}" in pool.said


def test_the_curl_that_it_shows_works_as_it_stands(pool: LaptopPool) -> None:
    [command] = re.findall(r"^pagoda │ (curl .*)$", pool.said, re.MULTILINE)
    result = subprocess.run(
        ["bash", "-c", f"{command} --fail-with-body --silent"],
        capture_output=True,
        text=True,
        timeout=EVENT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    answer = json.loads(result.stdout)
    assert answer["choices"][0]["message"]["content"]
    details = answer["usage"]["prompt_tokens_details"]
    assert sum(details["sources"].values()) == answer["usage"]["prompt_tokens"]


def test_the_models_are_listed_under_the_manifests_name(pool: LaptopPool) -> None:
    with pool.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL]


def test_a_killed_engine_is_replaced_while_the_pool_answers(pool: LaptopPool) -> None:
    before = pool.part("engine", "chat-0")
    os.kill(before["pid"], signal.SIGKILL)
    assert pool.ask("Name a colour.")
    pool.until(lambda: pool.part("engine", "chat-0")["state"] == "ready", "the engine's return")
    after = pool.part("engine", "chat-0")
    assert (after["port"], after["starts"]) == (before["port"], before["starts"] + 1)
    assert pool.ask("Name another colour.")


@pytest.mark.parametrize("kind", ["sidecar", "memcached", "router"])
def test_any_other_part_that_is_killed_is_replaced_too(kind: str, pool: LaptopPool) -> None:
    name = next(part["name"] for part in pool.record()["parts"] if part["kind"] == kind)
    os.kill(pool.part(kind, name)["pid"], signal.SIGKILL)
    pool.until(lambda: pool.part(kind, name)["state"] != "ready", "the death")
    pool.until(lambda: bool(pool.record()["ready"]), "the return")
    assert pool.ask("Name a fruit.")


def test_the_same_pool_is_refused_a_second_time_in_a_moment(pool: LaptopPool) -> None:
    command = [sys.executable, "-m", "pagoda_cli", "up", str(MANIFEST), "--port", "0", "--state", str(pool.state)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 2
    assert "already running" in result.stderr


def test_ctrl_c_lets_an_answer_finish_and_leaves_nothing(pool: LaptopPool) -> None:
    pids = [part["pid"] for part in pool.record()["parts"]]
    with pool.client() as client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count from one to twenty in words."}],
            max_tokens=48,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        next(iter(stream))
        pool.process.send_signal(signal.SIGINT)
        rest = list(stream)
    assert rest[-1].usage is not None
    assert rest[-1].usage.completion_tokens > 1
    assert pool.process.wait(EVENT_SECONDS) == 0, pool.said[-5000:]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not (pool.state / "run.json").exists()


def test_the_demo_shows_history_out_of_the_pool_after_a_crash(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "demo.py")],
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    last = result.stdout.splitlines()[-1]
    assert re.search(r"median time to first token \d+\.\d\d s cold and \d+\.\d\d s reused", last)


def test_a_demo_that_is_killed_takes_its_pool_with_it(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "examples" / "demo.py")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        end = time.monotonic() + EVENT_SECONDS
        files: list[Path] = []
        while not files and time.monotonic() < end:
            files = list(tmp_path.glob("pagoda-demo-*/run.json"))
            time.sleep(0.1)
        assert files, "the demo started no pool"
        record = json.loads(files[0].read_text("utf-8"))
    finally:
        demo.kill()
        demo.wait()
    pids = [record["pid"], *(part["pid"] for part in record["parts"] if part["pid"])]
    end = time.monotonic() + EVENT_SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_manifest_of_the_laptop_fits_a_machine_of_six_gibibytes() -> None:
    spec = yaml.safe_load(MANIFEST.read_text("utf-8"))["spec"]

    def bytes_of(quantity: str) -> int:
        number, unit = quantity[:-2], quantity[-2:]
        return int(number) * {"Mi": 1024**2, "Gi": 1024**3}[unit]

    cache = spec["cache"]
    pods = bytes_of(spec["engine"]["resources"]["limits"]["memory"]) + bytes_of(cache["ram"]["size"])
    managed = cache["pool"]["managed"]
    total = spec["replicas"] * pods + managed["replicas"] * bytes_of(managed["memoryPerReplica"])
    assert total <= 5 * 1024**3
