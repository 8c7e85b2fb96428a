"""`python -m pagoda_cli` is `pagoda`."""

from pagoda_cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
