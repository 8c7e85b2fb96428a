"""Logs: one line per event on standard error, `time level program[pod] message key=value …`.

`pagoda_protocol.log_lines` reads them. Prompts, tokens, keys and tenant names never go into a log line.
"""

import logging
import sys
import time


def configure(program: str, name: str, level: int = logging.INFO) -> None:
    """Send the process's logs to standard error under `program[name]`. Called once, by a program's entry point."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)s {program}[{name}] %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def fields(**values: object) -> str:
    """Format `key=value` pairs for the end of a message; values with spaces are quoted."""
    return " ".join(f"{key}={_quoted(value)}" for key, value in values.items())


def _quoted(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text
