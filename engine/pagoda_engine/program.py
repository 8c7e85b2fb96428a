"""One engine from its command line to its end: the composition root.

    keys read ─► HTTP up, /ready 503 "loading …" ─► model loaded in a thread ─► /ready 200 ─► signal ─► drain ─► exit 0

Rules: what cannot work is said before anything slow begins; `/health` answers all along, so torch is imported in the
loading thread and not here; the first signal drains, the second ends at once; an engine whose loop has broken ends the
process, so that it is started anew.
"""

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from pagoda_engine.arguments import Arguments
from pagoda_engine.model.errors import ModelError
from pagoda_engine.model.location import locate
from pagoda_engine.serving.drain import Drainer
from pagoda_engine.serving.errors import StartError, UnservableError
from pagoda_engine.serving.gate import Gate
from pagoda_engine.serving.keys import Keys
from pagoda_engine.serving.live import Live
from pagoda_engine.serving.progress import ProgressLog
from pagoda_engine.serving.server import build_app
from pagoda_engine.serving.service import Service
from pagoda_protocol.addresses import SELF_TEST_ADDRESS, self_test_address
from pagoda_protocol.tier import LOCK_NAME
from pagoda_runtime import logs
from pagoda_runtime.metrics import Metrics
from pagoda_runtime.stop import CANNOT_START, stop_on_signals
from pagoda_runtime.web import PortTakenError, serving
from pagoda_sidecar.client import is_free

if TYPE_CHECKING:
    from pagoda_engine.serving.loading import Loaded

_log = logging.getLogger(__name__)

_HEALTH_SECONDS = 1.0
# After the drain's time is up: for the error events of streams that are then cut.
_CUT_SECONDS = 2.0


def run(arguments: Arguments) -> int:
    """Serve until told to stop; return the exit status.

    That is 0, or 1 when the engine could not start or broke, or `CANNOT_START` when it never will.
    """
    logs.configure("engine", arguments.name)
    try:
        return asyncio.run(Program(arguments).run())
    except (StartError, PortTakenError) as error:
        _log.error("cannot start: %s", error)
        return CANNOT_START if isinstance(error, UnservableError) else 1


class Program:
    """The parts of a running engine that have to be ended in order."""

    def __init__(self, arguments: Arguments) -> None:
        """Check what can be checked at once.

        Raises:
            StartError: it cannot work.
        """
        if self_test_address() != SELF_TEST_ADDRESS:
            raise StartError("block addresses come out wrong in this process: its blocks would match nobody's")
        self._arguments = arguments
        self._keys = Keys(arguments.secret_dir, arguments.tenants_dir)
        self._live = Live(arguments.settings_dir)
        _check_places(arguments)
        self._metrics = Metrics()
        self._gate: Gate[Service] = Gate()
        self._drainer = Drainer(self._gate, arguments.drain_seconds)

    async def run(self) -> int:
        """Serve HTTP from now on, requests from when the model is loaded, until a signal comes."""
        arguments = self._arguments
        app = build_app(
            self._gate,
            self._metrics,
            max_model_tokens=arguments.max_model_tokens,
            drain=self._drainer.drain,
            admin_token=self._keys.admin_token,
            generation=lambda: self._live.settings().generation,
        )
        with stop_on_signals() as stop:
            async with (
                self._keys.following(),
                self._live.following(),
                serving(app, arguments.host, arguments.port) as port,
            ):
                _log.info("listening %s", logs.fields(host=arguments.host, port=port))
                loaded = await self._load(stop)
                try:
                    self._gate.open(loaded.service)
                    _log.info("ready %s", logs.fields(host=arguments.host, port=port, model=arguments.model_name))
                    return await self._serve(loaded, stop)
                finally:
                    await asyncio.to_thread(loaded.close)

    async def _load(self, stop: asyncio.Event) -> "Loaded":
        """Load in a thread; a signal meanwhile ends the process, since nothing is there that could be lost."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Loaded] = loop.create_future()
        progress = ProgressLog(self._gate.say)

        def work() -> None:
            try:
                progress("packages", 0.0)
                from pagoda_engine.serving.loading import load

                progress("packages", 1.0)
                loaded = load(self._arguments, self._keys, self._live, self._metrics, progress)
            except BaseException as error:  # noqa: BLE001 - carried over to the thread that waits
                loop.call_soon_threadsafe(done.set_exception, error)
            else:
                loop.call_soon_threadsafe(done.set_result, loaded)

        threading.Thread(target=work, name="load", daemon=True).start()
        stopped = asyncio.create_task(stop.wait())
        both: tuple[asyncio.Future[Any], ...] = (done, stopped)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            _log.info("stopped while loading")
            logging.shutdown()
            os._exit(0)  # the thread may be deep in a library that does not like to be ended in an orderly way
        stopped.cancel()
        return done.result()

    async def _serve(self, loaded: "Loaded", stop: asyncio.Event) -> int:
        while not stop.is_set():
            if not loaded.engine.is_healthy:
                _log.error("the engine's loop has broken; ending the process")
                return 1
            try:
                await asyncio.wait_for(stop.wait(), _HEALTH_SECONDS)
            except TimeoutError:
                continue
        if not await self._drainer.drain():
            _log.warning("cutting %s", logs.fields(num_streams=self._gate.num_inside))
            await asyncio.to_thread(loaded.engine.stop)
            await self._gate.wait_empty(_CUT_SECONDS)
        return 0


def _check_places(arguments: Arguments) -> None:
    """Look for the weights and at the volume, so that a missing one is known before torch is imported."""
    try:
        locate(package=arguments.model_package, path=arguments.model_path)
    except ModelError as error:
        raise StartError(str(error)) from error
    volume = arguments.volume
    if volume is None:
        return
    if not volume.is_dir():
        raise StartError(f"--volume {volume}: no such folder; it is the one that engine and sidecar share")
    if not is_free(volume / LOCK_NAME):
        raise StartError(f"--volume {volume}: another engine uses it, or it cannot be written; each needs its own")
