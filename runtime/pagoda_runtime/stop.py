"""How a program ends.

Graceful stop: SIGTERM and SIGINT set an event once; a second signal ends the process at once.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

# The exit status of a program that was told what cannot work: another start ends the same. EX_CONFIG in sysexits.h.
CANNOT_START = 78


@contextlib.contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets. Must be entered inside the running loop.

    A second signal means that the person no longer wants to wait: the process exits with 128 + its number.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
