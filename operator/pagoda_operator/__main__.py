"""`python -m pagoda_operator`: parse, wait for the Lease, lead, stop."""

import asyncio
import logging
import os
import sys
import threading

from pagoda_operator.arguments import Settings, parse_arguments
from pagoda_operator.kube.client import StartError
from pagoda_operator.parts import make_parts
from pagoda_operator.process import run
from pagoda_runtime.logs import configure
from pagoda_runtime.web import PortTakenError

_log = logging.getLogger(__name__)

LEFTOVERS_SECONDS = 5.0


def main() -> int:
    """Run the operator; return its exit status: 0 after a graceful stop, 1 after a failure."""
    settings = parse_arguments()
    configure("operator", settings.name)
    with asyncio.Runner() as runner:
        status = _run(runner, settings)
        _end_within(LEFTOVERS_SECONDS, status)
    return status


def _run(runner: asyncio.Runner, settings: Settings) -> int:
    try:
        runner.run(run(settings, make_parts))
    except (StartError, PortTakenError) as error:
        sys.stderr.write(f"pagoda_operator: {error}\n")
        return 1
    except Exception:  # noqa: BLE001 - the outermost: whatever failed, the log says so before the end
        _log.exception("a part of the operator failed; it ends, to be started again")
        return 1
    return 0


def _end_within(seconds: float, status: int) -> None:
    """End the process in a while if it has not ended by then: a failed kopf leaves tasks that ignore a cancellation.

    All of ours has ended, and the Lease is free; nobody would start a process again that never ends.
    """
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
