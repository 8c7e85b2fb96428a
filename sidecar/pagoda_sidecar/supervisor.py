"""The sidecar's main process: starts the worker, and starts it again when it dies. Does not exit on failure.

A native sidecar that exits or never becomes ready takes its whole pod out of service, so whatever is wrong with the
worker ends here as a log line, an answer to whoever asks on its port (`door`) and another try. The worker dies with
this process (PR_SET_PDEATHSIG in `worker`).

Rules: imports nothing that could fail or grow; one thread.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from pagoda_runtime import logs
from pagoda_runtime.deadlines import backoff
from pagoda_sidecar import arguments
from pagoda_sidecar.door import Door

_log = logging.getLogger(__name__)

SUPERVISOR_VARIABLE = "PAGODA_SIDECAR_SUPERVISOR"
RESTARTS_VARIABLE = "PAGODA_SIDECAR_RESTARTS"
STOP_SECONDS = 20.0
# A worker that lived so long was well: the next one is started without delay
STEADY_SECONDS = 10.0
LOOK_SECONDS = 0.2


class Supervisor:
    """Runs one worker at a time until told to stop. `open_door` opens the port; while it raises OSError none runs."""

    def __init__(self, command: Sequence[str], open_door: Callable[[], Door]) -> None:
        self._command = command
        self._open_door = open_door
        self._door: Door | None = None
        self._reason = "the worker is starting"
        self._worker: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._num_restarts = 0

    def run(self) -> int:
        """Keep a worker running; return the exit status once it ended because we were told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        waits = backoff(first=0.1, limit=10.0)
        while not self._is_stopping:
            started = time.monotonic()
            status = self._attempt()
            if self._is_stopping:
                break
            if time.monotonic() - started > STEADY_SECONDS:
                waits = backoff(first=0.1, limit=10.0)
            wait = next(waits)
            self._num_restarts += 1
            self._reason = f"the worker has ended and is started anew: {status}"
            _log.error("worker ended, tiers are off until it runs again %s", logs.fields(status=status))
            self._pause(wait)
        if self._door is not None:
            self._door.close()
        return 0

    def _attempt(self) -> int | str:
        """Run a worker to its end; return its exit status, or why it could not be started."""
        try:
            self._door = self._door or self._open_door()
        except OSError as error:
            return f"cannot listen: {error}; choose another port"
        try:
            return self._run_worker(self._door)
        except OSError as error:
            return str(error)
        finally:
            self._door.ended()

    def _run_worker(self, door: Door) -> int:
        environment = dict(os.environ)
        environment[SUPERVISOR_VARIABLE] = str(os.getpid())
        environment[RESTARTS_VARIABLE] = str(self._num_restarts)
        with door.lent() as (variables, descriptors):
            environment.update(variables)
            # A group of its own: a terminal's Ctrl-C reaches it once, through us, and not twice (which means "at once")
            self._worker = subprocess.Popen(self._command, env=environment, process_group=0, pass_fds=descriptors)
        if self._is_stopping:  # the signal came while we were starting it
            self._worker.terminate()
        deadline = None
        while (status := self._worker.poll()) is None:
            self._look(door, self._worker)
            if self._is_stopping:
                deadline = deadline or time.monotonic() + STOP_SECONDS
                if time.monotonic() > deadline:
                    _log.error("worker does not end, killed")
                    self._worker.kill()
        return status

    def _look(self, door: Door, worker: "subprocess.Popen[bytes]") -> None:
        """Let a moment pass, in which a worker may end, and who comes is answered unless the worker does."""
        if not door.is_served:
            self._stand_in(door, LOOK_SECONDS)
            return
        try:
            worker.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            pass

    def _stand_in(self, door: Door, seconds: float) -> None:
        """A worker that has ended once has decided enough for a probe: the pod must not wait for what keeps failing."""
        door.stand_in(self._num_restarts > 0, self._reason, seconds)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_stopping and (rest := end - time.monotonic()) > 0:
            if self._door is None:
                time.sleep(min(rest, LOOK_SECONDS))
            else:
                self._stand_in(self._door, min(rest, LOOK_SECONDS))

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(number)
        self._is_stopping = True


def main(argv: Sequence[str]) -> int:
    """Run the program."""
    settings = arguments.parse(argv)
    logs.configure("sidecar-supervisor", settings.name)
    command = [sys.executable, "-m", "pagoda_sidecar.worker", *argv]
    return Supervisor(command, lambda: Door(settings.host, settings.port)).run()
