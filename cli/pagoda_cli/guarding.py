"""Our side of the guard (guard.py): keeps it told of every process group, and lets it go at the end."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_GUARD = Path(__file__).with_name("guard.py")
_END_SECONDS = 10.0


class Guard:
    """Knows the process groups that must not outlive this process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def add(self, group: int) -> None:
        """Have the group killed when this process is gone."""
        self._tell(f"+{group}")

    def remove(self, group: int) -> None:
        """Forget a group that is gone, before its number can be given to another."""
        self._tell(f"-{group}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the kernel's death signals remain
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


@contextlib.contextmanager
def guarded(paths: Sequence[Path], lock: int) -> Iterator[Guard]:
    """Run a guard while the context is open; at its end, however it comes, `paths` are removed.

    The guard holds `lock` as well, so that nobody starts the same pool while it still clears up.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is not for it
        pass_fds=(lock,),
    )
    try:
        yield Guard(process)
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
