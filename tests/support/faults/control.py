"""What the hooked worker shall do, in a file: written by a test, read by the worker.

    {"kill": {"serial": 7, "point": "seal", "when": "torn", "countdown": 3},
     "flips": {"serial": 9, "bits": [["xxh3", 5, 0.25]]},
     "disk": [{"call": "pwritev", "kind": "ENOSPC", "chance": 0.5}]}

`kill`: SIGKILL at the countdown-th passage of a point, before it, after it or in the middle of it. `flips`: bits to
flip in sealed slots: field, bit, and which slot (0…1). Both are done once per serial, by the worker that runs when the
serial appears. `disk`: which system calls on segment files fail, and how often.
"""

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CONTROL, DONE, VIOLATIONS = "control.json", "done", "violations"
_LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Kill:
    """`when` is before, torn or after; not every point can be torn."""

    point: str
    when: str
    countdown: int


@dataclass(frozen=True)
class DiskFault:
    """`kind` is an errno's name, `short`, `torn_kill` or `slow`."""

    call: str
    kind: str
    chance: float = 1.0


class Steering:
    """The writer's side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._serial = 0
        folder.mkdir(exist_ok=True)
        for name in (DONE, VIOLATIONS):
            (folder / name).touch()
        self.clear()

    def clear(self) -> None:
        """Let nothing happen from now on."""
        self._kill: dict[str, Any] = {"serial": 0}
        self._flips: dict[str, Any] = {"serial": 0}
        self._disk: list[dict[str, Any]] = []
        self._write()

    def kill(self, kill: Kill) -> None:
        """Let the worker die at a point, instead of one that it has not come to yet."""
        self._kill = {"serial": self._next_serial(), **asdict(kill)}
        self._write()

    def flip(self, bits: Sequence[tuple[str, int, float]]) -> None:
        """Flip bits of sealed slots at the worker's next look."""
        self._flips = {"serial": self._next_serial(), "bits": list(bits)}
        self._write()

    def disk(self, faults: Sequence[DiskFault]) -> None:
        """Let system calls on segment files fail from now on; none for an empty list."""
        self._disk = [asdict(fault) for fault in faults]
        self._write()

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _write(self) -> None:
        temporary = self.folder / "control.next"
        temporary.write_text(json.dumps({"kill": self._kill, "flips": self._flips, "disk": self._disk}))
        temporary.replace(self.folder / CONTROL)

    def done(self) -> list[str]:
        """Return the names of the faults done so far."""
        return (self.folder / DONE).read_text().split()

    def violations(self) -> list[str]:
        """Return what was found broken."""
        return (self.folder / VIOLATIONS).read_text().splitlines()


class Control:
    """The worker's side: what the file says, at most a moment old."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._random = random.Random(os.getpid())
        self._looked_at = 0.0
        self._stamp: tuple[int, int] | None = None
        self._content: Mapping[str, Any] = {"kill": {"serial": 0}, "flips": {"serial": 0}, "disk": []}
        self.has_violation = False
        self._look()  # a worker that starts does nothing that an earlier one may have done already
        self._killed, self._flipped = self._content["kill"]["serial"], self._content["flips"]["serial"]
        self._counting, self._left = 0, 0

    def kills(self, point: str, when: str) -> bool:
        """Count a passage of a point; say whether it is the one to die at."""
        self._look()
        kill = self._content["kill"]
        if kill["serial"] in (0, self._killed) or kill["point"] != point or kill["when"] != when:
            return False
        if kill["serial"] != self._counting:
            self._counting, self._left = kill["serial"], kill["countdown"]
        self._left -= 1
        return self._left == 0

    def disk_faults(self, call: str) -> list[DiskFault]:
        """Return what may happen to a system call now."""
        self._look()
        return [DiskFault(**fault) for fault in self._content["disk"] if fault["call"] == call]

    def is_due(self, chance: float) -> bool:
        """Draw whether something that may happen does."""
        return self._random.random() < chance

    def draw(self, stop: int) -> int:
        """Draw a number below `stop`."""
        return self._random.randrange(stop)

    def flips(self) -> list[tuple[str, int, float]]:
        """Return bits to flip, once."""
        self._look()
        flips = self._content["flips"]
        if flips["serial"] in (0, self._flipped):
            return []
        self._flipped = flips["serial"]
        return [(field, bit, where) for field, bit, where in flips["bits"]]

    def done(self, name: str) -> None:
        """Write down that a fault was done; survives a kill right after."""
        self._append(DONE, name)

    def violation(self, what: str) -> None:
        """Write down that an invariant was broken."""
        self.has_violation = True
        self._append(VIOLATIONS, what.replace("\n", " "))

    def _append(self, name: str, line: str) -> None:
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            status = (self._folder / CONTROL).stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != self._stamp:
                self._content = json.loads((self._folder / CONTROL).read_text())
                self._stamp = stamp
        except (OSError, ValueError):
            pass  # between two versions; the next look finds one
