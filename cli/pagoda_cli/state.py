"""The state folder of a pool on this machine: what outlives a run, and what a run tells others.

    <state>/lock                      held while `pagoda up` runs this pool
    <state>/secrets/<name>/<key>      as the Kubernetes Secrets of the same names, files 0600
    <state>/disk/<pod>/               its disk tier: what a run kept there is found by the next one with that pod
    <state>/run.json                  pids, ports and names of the run, gone when it ends
    <state>/run/                      what the programs of the run read; made anew by each run
        settings/{pool-nodes,pods,live}.json  router-secret/digest

Files that others may be reading are replaced in one piece.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pagoda_cli.problems import RefusedError

_LOCK_SECONDS = 0.5  # a run that was killed needs a moment to clear up


@dataclass(frozen=True)
class StateFolder:
    """The paths of one pool's state."""

    path: Path

    @property
    def run(self) -> Path:
        """What the programs of a run read."""
        return self.path / "run"

    @property
    def settings(self) -> Path:
        """Holds `pool-nodes.json`, `pods.json` and `live.json`."""
        return self.run / "settings"

    @property
    def router_secret(self) -> Path:
        """Holds `digest` alone."""
        return self.run / "router-secret"

    @property
    def run_file(self) -> Path:
        """What a run tells others."""
        return self.path / "run.json"

    @property
    def disks(self) -> Path:
        """Holds the disk tiers of the pods."""
        return self.path / "disk"

    def secret(self, name: str) -> Path:
        """Return the folder of the secret `name`."""
        return self.path / "secrets" / name


def default_state(pool_name: str) -> Path:
    """Return where a pool's state lives when nobody says otherwise."""
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    return base / "pagoda" / pool_name


@contextlib.contextmanager
def locked(state: StateFolder) -> Iterator[int]:
    """Hold the folder's lock; yield its descriptor, which a guard may inherit to hold it longer.

    Raises:
        RefusedError: another run holds it, or the folder cannot be made.
    """
    lock = state.path / "lock"
    try:
        private_folder(state.path)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RefusedError([f"--state: {state.path}: {error.strerror}; give a folder you may write to"]) from error
    try:
        _take(descriptor, state)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _take(descriptor: int, state: StateFolder) -> None:
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            what = f"this pool is already running (process {pid}, state in {state.path})"
            raise RefusedError([f"metadata.name: {what}; stop it, or give another --state"]) from None
        return


@contextlib.contextmanager
def run_folder(state: StateFolder) -> Iterator[None]:
    """Make the run's folders anew; remove them, and `run.json`, at the end."""
    clear_run(state)
    for folder in (state.run, state.settings, state.router_secret):
        private_folder(folder)
    try:
        yield
    finally:
        clear_run(state)


def clear_run(state: StateFolder) -> None:
    """Remove what belongs to a run; it may be one that was killed."""
    shutil.rmtree(state.run, ignore_errors=True)
    state.run_file.unlink(missing_ok=True)


def write_settings(state: StateFolder, settings: Mapping[str, object]) -> None:
    """Write each settings file of the run."""
    for name, content in settings.items():
        write_private(state.settings / name, (json.dumps(content, indent=1) + "\n").encode())


def write_private(path: Path, content: bytes, is_precious: bool = False) -> None:
    """Replace `path` in one piece by a file that only its owner may read; a precious one survives a power cut."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if is_precious:
            file.flush()
            os.fsync(descriptor)
    new.replace(path)


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter, and what is missing above it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
