"""Logs: one line per event on standard error, `time level program[pod] message key=value …`.

Prompts, tokens, keys and tenant names never go into a log line.
"""

import logging
import re
import sys
import time

_HEAD = re.compile(r"\S+Z ([A-Z]+) [a-z]+\[[^\]]*\] ")


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


def last_words(log: str) -> str:
    """Return why a program ended, of the end of its log: the last line, without the time and the name in ours.

    Empty where that line is one of ours and tells no error: then something else has ended the program.
    """
    line = next((line for line in reversed(log.splitlines()) if line.strip()), "")
    head = _HEAD.match(line)
    if head is None:
        return line
    return line[head.end() :] if head[1] in ("ERROR", "CRITICAL") else ""


def _quoted(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if not text or any(character.isspace() for character in text) else text
