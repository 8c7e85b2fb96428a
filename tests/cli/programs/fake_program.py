"""Stands in for the engine, the sidecar and the router: takes their flags, answers 200 on every path.

The folder is put on PYTHONPATH, so that `pagoda up` starts these with the command lines it would start ours with.
What goes wrong is asked for with files in $PAGODA_FAKE, named <kind>-<fault>.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(kind: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    options, _ = parser.parse_known_args()
    faults = {path.name.removeprefix(f"{kind}-") for path in Path(os.environ["PAGODA_FAKE"]).glob(f"{kind}-*")}
    sys.stdout.write(f"{kind} {options.name} begins\n")
    if "broken" in faults:
        sys.stdout.write("no such weights\n")
        sys.exit(3)
    if "slow" in faults:
        time.sleep(60)
    if "stubborn" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "family" in faults:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "pagoda-fake-grandchild"])
    for percent in (0, 50, 100):
        sys.stderr.write(f"INFO progress weights {percent}%\n")
    with ThreadingHTTPServer((options.host, options.port), Handler) as server:
        server.serve_forever()
