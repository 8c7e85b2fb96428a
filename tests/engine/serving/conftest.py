"""A real engine over the tiny checkpoint, made once, and a server in front of it for each test."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import pytest

from pagoda_engine.arguments import Arguments
from pagoda_engine.serving.drain import Drainer
from pagoda_engine.serving.gate import Gate
from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.live import Live
from pagoda_engine.serving.loading import Loaded, load
from pagoda_engine.serving.server import build_app
from pagoda_engine.serving.service import Service
from pagoda_protocol.tenants import digest_secret
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.web import serving
from tests.support.checkpoints import tiny_checkpoint

MAX_MODEL_TOKENS = 1024
ADMIN = {"Authorization": "Bearer " + "a1" * 32}


@dataclass
class Server:
    """One running HTTP server."""

    port: int
    gate: Gate[Service]
    service: Service
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def openai(self, api_key: str = "none") -> AsyncIterator[openai.AsyncOpenAI]:
        async with openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0) as client:
            yield client


@contextlib.asynccontextmanager
async def server_of(service: Service | None, drain_seconds: float = 5.0) -> AsyncIterator[Server]:
    """Serve `service`; None: a server whose model is still loading."""
    gate: Gate[Service] = Gate()
    if service is not None:
        gate.open(service)
    app = build_app(
        gate,
        Metrics(),
        max_model_tokens=MAX_MODEL_TOKENS,
        drain=Drainer(gate, drain_seconds).drain,
        admin_token=ADMIN["Authorization"].removeprefix("Bearer "),
        generation=lambda: 7,
    )
    async with serving(app, "127.0.0.1", 0, shutdown_seconds=0.2) as port, aiohttp.ClientSession() as http:
        yield Server(port, gate, service, http)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(write_secrets(tmp_path_factory.mktemp("secret")), None)


def write_secrets(folder: Path) -> Path:
    secret = secrets.token_bytes(32)
    (folder / "pool").write_bytes(secret)
    (folder / "digest").write_bytes(digest_secret(secret))
    return folder


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("model")
    arguments = Arguments(
        name="test",
        host="127.0.0.1",
        port=0,
        model_name="tiny",
        model_package=None,
        model_path=tiny_checkpoint(folder),
        volume=None,
        secret_dir=folder,
        tenants_dir=None,
        settings_dir=None,
        codec="Raw",
        device="cpu",
        kv_memory_bytes=4 << 20,
        block_tokens=16,
        kv_dtype="Auto",
        max_model_tokens=MAX_MODEL_TOKENS,
        max_batch_tokens=128,
        max_sequences=8,
        threads=1,
        drain_seconds=5,
        exact=True,
    )
    loaded = load(arguments, keys, Live(None), Metrics(), lambda stage, share: None)
    yield loaded
    loaded.close()


@pytest.fixture
async def server(loaded: Loaded) -> AsyncIterator[Server]:
    async with server_of(loaded.service) as server:
        yield server
    await eventually(lambda: loaded.engine.is_idle)
    loaded.engine.check_integrity()
    await eventually(lambda: not any(held(loaded)))


def held(loaded: Loaded) -> tuple[int, int, int]:
    """What requests hold, by the counts of the last step: these follow a moment after the engine is idle."""
    stats = loaded.engine.stats()
    return stats.num_referenced, stats.num_running, stats.num_waiting


async def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until `condition` holds, which another thread brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the other thread knows no event of this loop
            await asyncio.sleep(0.005)
