"""What the programs of a killed run do."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from tests.support.program import dying_with_us

STARTER = """\
import subprocess, sys, time
print(subprocess.Popen(sys.argv[1:]).pid, flush=True)
time.sleep(600)
"""


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _is_gone(program: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not program.is_running() or program.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_ends_with_the_killed_process_that_started_it(number: signal.Signals) -> None:
    command = dying_with_us(["sleep", "600"], number)
    starter = subprocess.Popen([sys.executable, "-c", STARTER, *command], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    with starter.stdout:
        program = psutil.Process(int(starter.stdout.readline()))
        _wait_until(lambda: program.name() == "sleep")
    starter.kill()
    starter.wait()
    try:
        _wait_until(lambda: _is_gone(program))
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            program.kill()
