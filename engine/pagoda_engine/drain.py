"""`python -m pagoda_engine.drain`: drain the engine on this machine, and end when it has drained or the time is up.

Kubernetes runs it as the engine's preStop, so whatever is wrong it ends with status 0 and a line that says so: the
signal comes next in any case, and drains what is left.

Rules: the standard library and the protocol alone, for it is started in the pod's last moments; nothing is retried.
"""

import argparse
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pagoda_protocol.tenants import POOL_SECRET_KEY, admin_token

HOST = "localhost"
CONNECT_SECONDS = 2.0
# Beyond the streams' time: the engine hands over what they leave, and its answer is worth waiting for
MARGIN_SECONDS = 10.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; abbreviations are refused, so that a misspelt flag cannot pass."""
    parser = argparse.ArgumentParser("pagoda_engine.drain", description="Drain a running engine.", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True, help="where the engine serves HTTP")
    parser.add_argument("--secret-dir", type=Path, required=True, help="the folder that holds pool")
    parser.add_argument("--seconds", type=float, required=True, help="how long its streams may go on")
    return parser


def drain(port: int, secret_dir: Path, seconds: float) -> str:
    """Have the engine drain and wait for it; return what came of it."""
    end = time.monotonic() + seconds + MARGIN_SECONDS
    try:
        token = admin_token((secret_dir / POOL_SECRET_KEY).read_bytes())
        with contextlib.closing(http.client.HTTPConnection(HOST, port, timeout=CONNECT_SECONDS)) as connection:
            connection.connect()
            connection.sock.settimeout(max(CONNECT_SECONDS, end - time.monotonic()))
            connection.request("POST", "/drain", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            body = answer.read(4096)
        return str(json.loads(body)["status"]) if answer.status == 200 else f"refused with status {answer.status}"
    except TimeoutError:
        return "the time is up"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return f"not drained: {type(error).__name__}: {error}"


def main(argv: Sequence[str] | None = None) -> int:
    """Drain; the exit status is 0 whatever came of it."""
    arguments = build_parser().parse_args(argv)
    sys.stderr.write(f"drain: {drain(arguments.port, arguments.secret_dir, arguments.seconds)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
