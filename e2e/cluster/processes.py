"""The programs of one cluster: started once each, found again by a later command, ended by their recorded ids.

A record is `pids/<name>` in the cluster's state folder: the process id and when that process started, since ids come
around again.
"""

import contextlib
import functools
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

TERM_SECONDS = 5.0
POLL_SECONDS = 0.05


class Processes:
    """What runs for the cluster whose state folder this is."""

    def __init__(self, state: Path) -> None:
        self._pids = state / "pids"
        self._logs = state / "logs"

    def start(self, name: str, *command: str | Path, folder: Path | None = None) -> None:
        """Start `command` under `name` in a session of its own, unless it runs already."""
        if self.is_alive(name):
            return
        for needed in (self._pids, self._logs):
            needed.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd=folder,
            )  # fmt: skip
        (self._pids / name).write_text(f"{process.pid} {_started(process.pid)}", "utf-8")
        # It outlives this command, or is reaped in `stop`; either way nobody waits on this object.
        process.returncode = 0

    def log(self, name: str) -> Path:
        """Return the file of what the process said."""
        return self._logs / name

    def names(self) -> list[str]:
        """Return the names of all recorded processes."""
        return sorted(path.name for path in self._pids.iterdir()) if self._pids.is_dir() else []

    def is_alive(self, name: str) -> bool:
        """Return whether the recorded process is the one that was started, and runs."""
        return self._pid(name) is not None

    def _is_gone(self, name: str) -> bool:
        return not self.is_alive(name)

    def stop(self, *names: str) -> None:
        """End these processes, all at once; one that does not go within seconds is killed."""
        for name in names:
            self._signal(name, signal.SIGTERM)
        for name in names:
            if not _until(functools.partial(self._is_gone, name), TERM_SECONDS):
                self._signal(name, signal.SIGKILL)
                _until(functools.partial(self._is_gone, name), TERM_SECONDS)
            (self._pids / name).unlink(missing_ok=True)

    def tail(self, name: str, characters: int = 2000) -> str:
        """Return the end of what the process said."""
        try:
            return self.log(name).read_text("utf-8", "replace")[-characters:]
        except FileNotFoundError:
            return ""

    def _signal(self, name: str, number: int) -> None:
        pid = self._pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pid(self, name: str) -> int | None:
        try:
            pid, started = (self._pids / name).read_text("utf-8").split()
        except (FileNotFoundError, ValueError):
            return None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(int(pid), os.WNOHANG)  # a child of this very command would stay a zombie
        return int(pid) if _started(int(pid)) == started else None


def _started(pid: int) -> str:
    """Return when the process started, in the kernel's ticks; "" for none and for a zombie."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8").rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if after_name[0] == "Z" else after_name[19]


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_SECONDS)
    return True


def wait_for(condition: Callable[[], bool], what: str, seconds: float, explain: Callable[[], str] = str) -> None:
    """Wait until `condition` holds; TimeoutError says what did not come, and what `explain` knows of it."""
    if not _until(condition, seconds):
        raise TimeoutError(f"{what} did not come within {seconds:.0f} s\n{explain()}")
