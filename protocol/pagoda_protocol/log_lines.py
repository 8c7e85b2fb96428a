"""What the log of a program says of its end: lines of ours, as `pagoda_runtime.logs` writes them, among others'."""

import re

_KEPT_BYTES = 2048
_TRACEBACK = "Traceback (most recent call last)"
_HEAD = re.compile(r"\S+Z ([A-Z]+) [a-z-]+\[[^\]]*\] ")


def last_words(log: str) -> str:
    """Return why a program ended, of the end of its log as the kubelet keeps it: one line, empty if it tells no error.

    That is what our last line says where it is an error, without the time and the name, which differ at each try; else
    what follows it: of a traceback the error, of anything else the last line.
    """
    if len(log.encode("utf-8", "replace")) >= _KEPT_BYTES:
        log = log.partition("\n")[2]  # its first line may have lost its head
    lines = [line for line in log.split("\n") if line.strip()]
    last = max((number for number, line in enumerate(lines) if _HEAD.match(line)), default=-1)
    head = _HEAD.match(lines[last]) if last >= 0 else None
    if head is not None and head[1] in ("ERROR", "CRITICAL"):
        return lines[last][head.end() :]
    foreign = lines[last + 1 :]
    traces = [number for number, line in enumerate(foreign) if line.startswith(_TRACEBACK)]
    if traces:
        return next((line for line in foreign[traces[-1] + 1 :] if not line[0].isspace()), "")
    return foreign[-1] if foreign else ""
