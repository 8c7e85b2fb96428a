"""The sidecar's main process: starts the worker, and starts it again when it dies. Does not exit on failure.

A native sidecar that exits or never becomes ready takes its whole pod out of service, so whatever is wrong with the
worker ends here as a log line and another try. The worker dies with this process (PR_SET_PDEATHSIG in `worker`).

Rules: imports nothing that could fail or grow; one thread.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from pagoda_runtime import logs
from pagoda_runtime.deadlines import backoff
from pagoda_sidecar import arguments

_log = logging.getLogger(__name__)

SUPERVISOR_VARIABLE = "PAGODA_SIDECAR_SUPERVISOR"
RESTARTS_VARIABLE = "PAGODA_SIDECAR_RESTARTS"
STOP_SECONDS = 20.0
# A worker that lived so long was well: the next one is started without delay
STEADY_SECONDS = 10.0


class Supervisor:
    """Runs one worker at a time until told to stop."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
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
            status = self._run_worker()
            if self._is_stopping:
                break
            if time.monotonic() - started > STEADY_SECONDS:
                waits = backoff(first=0.1, limit=10.0)
            wait = next(waits)
            self._num_restarts += 1
            _log.error("worker ended, tiers are off until it runs again %s", logs.fields(status=status, wait=wait))
            self._pause(wait)
        return 0

    def _run_worker(self) -> int | str:
        """Run a worker to its end; return its exit status, or why it could not be started."""
        environment = dict(os.environ)
        environment[SUPERVISOR_VARIABLE] = str(os.getpid())
        environment[RESTARTS_VARIABLE] = str(self._num_restarts)
        try:
            # A group of its own: a terminal's Ctrl-C reaches it once, through us, and not twice (which means "at once")
            self._worker = subprocess.Popen(self._command, env=environment, process_group=0)
        except OSError as error:
            return str(error)
        if self._is_stopping:  # the signal came while we were starting it
            self._worker.terminate()
        deadline = None
        while True:
            try:
                return self._worker.wait(0.2)
            except subprocess.TimeoutExpired:
                if not self._is_stopping:
                    continue
                deadline = deadline or time.monotonic() + STOP_SECONDS
                if time.monotonic() > deadline:
                    _log.error("worker does not end, killed")
                    self._worker.kill()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_stopping and time.monotonic() < end:
            time.sleep(0.05)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._worker is not None and self._worker.poll() is None:
            self._worker.send_signal(number)
        self._is_stopping = True


def main(argv: Sequence[str]) -> int:
    """Run the program."""
    name = arguments.parse(argv).name
    logs.configure("sidecar-supervisor", name)
    return Supervisor([sys.executable, "-m", "pagoda_sidecar.worker", *argv]).run()
