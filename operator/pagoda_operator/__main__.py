"""`python -m pagoda_operator`: parse, wait for the Lease, lead, stop."""

import asyncio
import logging
import sys

from pagoda_operator.arguments import parse_arguments
from pagoda_operator.kube.client import StartError
from pagoda_operator.parts import make_parts
from pagoda_operator.process import run
from pagoda_runtime.logs import configure
from pagoda_runtime.web import PortTakenError

_log = logging.getLogger(__name__)


def main() -> int:
    """Run the operator; return its exit status: 0 after a graceful stop, 1 after a failure."""
    settings = parse_arguments()
    configure("operator", settings.name)
    try:
        asyncio.run(run(settings, make_parts))
    except (StartError, PortTakenError) as error:
        sys.stderr.write(f"pagoda_operator: {error}\n")
        return 1
    except Exception:  # noqa: BLE001 - the outermost: whatever failed, the log says so before the end
        _log.exception("a part of the operator failed; it ends, to be started again")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
