"""`python -m pagoda_router`: parse, serve, drain."""

import asyncio
import sys

from pagoda_router.arguments import parse_arguments
from pagoda_router.errors import StartError
from pagoda_router.server import run
from pagoda_runtime.logs import configure


def main() -> int:
    """Run the router; return its exit status: 0 after a graceful stop, 1 if it could not start."""
    settings = parse_arguments()
    configure("router", settings.name)
    try:
        asyncio.run(run(settings))
    except StartError as error:
        sys.stderr.write(f"pagoda_router: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
