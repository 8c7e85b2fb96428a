"""The real sidecar, supervisor and worker, with hooks where its worker meets the operating system and its own arena.

    python -m tests.support.faults.sidecar ARGUMENTS OF pagoda_sidecar…        with PAGODA_FAULTS=<folder>

<folder>/control.json says what shall happen (`control.Control`), <folder>/done has a line for each fault that was done,
<folder>/violations one for each invariant of the worker that was found broken. The product holds none of this.
"""

import os
import sys
from collections.abc import Sequence

from pagoda_runtime import logs
from pagoda_sidecar import arguments, supervisor
from pagoda_sidecar.door import Door
from tests.support.faults import hooks

FOLDER_VARIABLE = "PAGODA_FAULTS"
WORKER_FLAG = "--as-worker"
STEADY_SECONDS = 0.2  # a killed worker is started again without the growing pause


def main(argv: Sequence[str]) -> int:
    """Be the supervisor, or the worker that it starts."""
    if argv and argv[0] == WORKER_FLAG:
        hooks.install(os.environ[FOLDER_VARIABLE])
        from pagoda_sidecar import worker

        return worker.main(argv[1:])
    supervisor.STEADY_SECONDS = STEADY_SECONDS
    settings = arguments.parse(argv)
    logs.configure("sidecar-supervisor", settings.name)
    command = [sys.executable, "-m", "tests.support.faults.sidecar", WORKER_FLAG, *argv]
    return supervisor.Supervisor(command, lambda: Door(settings.host, settings.port)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
