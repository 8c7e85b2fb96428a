"""`python -m pagoda_engine`: see `arguments` for the flags and `program` for what it does."""

import sys

from pagoda_engine.arguments import parse


def main() -> int:
    """Read the command line, then import what is heavy, then serve until told to stop; return the exit status."""
    arguments = parse()
    from pagoda_engine.program import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
