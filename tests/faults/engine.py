"""An engine stand-in in a process of its own: the real client, several threads, every call checked.

    python -m tests.faults.engine VOLUME NAMESPACE_NUMBER SEED THREADS

Told by lines on stdin: `go`, `pause` (answered with {"paused": true} when every thread rests), `reopen` (close the
client under the running threads and make a new one), `stop`. Says on stdout, one JSON object a line, what it counted.
It is meant to be killed at any moment.
"""

import contextlib
import faulthandler
import json
import signal
import sys
import threading
import time
from pathlib import Path

from pagoda_sidecar.client import LockHeldError, TierClient
from tests.faults import universe
from tests.faults.calls import Caller, Ledger

SAY_SECONDS = 0.25
REOPEN_SECONDS = 30.0


class Engine:
    """The client, and the threads that call it."""

    def __init__(self, volume: Path, namespace: int, seed: str, num_threads: int) -> None:
        self.ledger = Ledger()
        self._volume, self._namespace = volume, namespace
        self._client = self._open()
        self._may_run = threading.Event()
        self._is_over = False
        self._resting = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._call, args=(f"{seed}/{number}",), daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._resting.acquire()  # they begin at rest

    def go(self) -> None:
        """Let the threads call."""
        self._may_run.set()

    def pause(self) -> bool:
        """Let every thread finish its call; return whether all do."""
        self._may_run.clear()
        end = time.monotonic() + 30.0
        return all(self._resting.acquire(timeout=max(0.01, end - time.monotonic())) for _ in self._threads)

    def reopen(self) -> None:
        """Close the client while threads call it, and open another one."""
        self._client.close()
        self._client = self._open()

    def stop(self) -> None:
        """End threads and client."""
        self._is_over = True
        self._may_run.set()
        for thread in self._threads:
            thread.join(30.0)
            if thread.is_alive():
                self.ledger.wrong("a thread hangs at the end")
        self._client.close()

    def _open(self) -> TierClient:
        """The lock is free as soon as whoever held it is gone, at the latest."""
        end = time.monotonic() + REOPEN_SECONDS
        while True:
            try:
                client = TierClient(self._volume, universe.identity(self._namespace))
            except LockHeldError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
            else:
                client.on_integrity_failure = lambda tier, reason: self.ledger.count(f"integrity.{tier}.{reason}")
                return client

    def _call(self, seed: str) -> None:
        caller = Caller(lambda: self._client, self._namespace, seed, self.ledger)
        while not self._is_over:
            if not self._may_run.is_set():
                self._resting.release()
                self._may_run.wait()
                continue
            try:
                caller.step()
            except Exception as error:  # nothing else may come out of a call
                self.ledger.wrong(f"a call raised {type(error).__name__}: {error}")


def say(message: dict[str, object]) -> None:
    """Write one line."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def main(volume: str, namespace: str, seed: str, num_threads: str) -> None:
    """Follow stdin to its end."""
    faulthandler.register(signal.SIGUSR1)
    engine = Engine(Path(volume), int(namespace), seed, int(num_threads))

    def report() -> None:
        while True:
            time.sleep(SAY_SECONDS)
            say({"counts": engine.ledger.snapshot(), "wrongs": engine.ledger.wrongs})

    threading.Thread(target=report, daemon=True).start()
    for line in sys.stdin:
        command = line.strip()
        if command == "pause":
            is_paused = engine.pause()
            say({"counts": engine.ledger.snapshot(), "wrongs": engine.ledger.wrongs, "paused": is_paused})
        elif command == "stop":
            break
        else:
            {"go": engine.go, "reopen": engine.reopen}[command]()
    engine.stop()
    say({"counts": engine.ledger.snapshot(), "wrongs": engine.ledger.wrongs, "ended": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
