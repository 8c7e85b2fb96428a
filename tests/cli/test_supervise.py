"""Parts that crash come back, parts that will not start are told of, parts that will not end are killed.

The parts are small Python scripts; the ports they listen on are free ones.
"""

import asyncio
import io
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pagoda_cli.display import PlainDisplay
from pagoda_cli.guarding import guarded
from pagoda_cli.keeper import Pace, State
from pagoda_cli.plan import Kind, Part, Plan
from pagoda_cli.ports import LOOPBACK, free_ports
from pagoda_cli.problems import StartupFailedError
from pagoda_cli.supervise import Stop, Supervisor
from pagoda_protocol.pool.arguments import Command
from pagoda_runtime.stop import CANNOT_START

DEADLINE_SECONDS = 30.0
HURRY = Pace(probe_seconds=0.02, first_backoff_seconds=0.05, max_backoff_seconds=0.2, kill_seconds=0.2)

LISTEN = "import socket, sys, time; server = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
GOOD = LISTEN + "print('listening', flush=True); time.sleep(300)"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LISTEN + "print('deaf', flush=True); "
    "time.sleep(300)"
)
BROKEN = "import sys; print('no weights', flush=True); sys.exit(3)"
NEVER_READY = "import time; time.sleep(300)"


class World:
    """A supervisor over scripts, and everything it showed."""

    def __init__(self, *scripts: tuple[Kind, str, str], startup_seconds: float = 20.0) -> None:
        ports = free_ports(len(scripts))
        parts = tuple(
            Part(kind, name, Command((sys.executable, "-c", script, str(port))), port, None, startup_seconds, 0.3)
            for (kind, name, script), port in zip(scripts, ports, strict=True)
        )
        self.plan = Plan("chat", "smollm2", parts, {}, (), ())
        self.output = io.StringIO()
        self.stop = Stop()
        self.ready = asyncio.Event()
        self.supervisor: Supervisor

    async def run(self) -> None:
        with guarded((), lock=0) as guard:  # standard input stands for the lock
            display = PlainDisplay(self.output)
            self.supervisor = Supervisor(self.plan, LOOPBACK, guard, display, lambda _: None, HURRY)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self.supervisor.run(self.stop, self.ready.set)

    @property
    def lines(self) -> list[str]:
        return self.output.getvalue().splitlines()

    def pids(self) -> list[int]:
        return [keeper.process.pid for keeper in self.supervisor.keepers if keeper.process is not None]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
                await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_all_parts_come_up_and_end_in_the_order_of_need() -> None:
    world = World(
        (Kind.MEMCACHED, "m", GOOD), (Kind.SIDECAR, "s", GOOD), (Kind.ENGINE, "e", GOOD), (Kind.ROUTER, "r", GOOD)
    )
    running = asyncio.create_task(world.run())
    await world.until(world.ready.is_set)
    pids = world.pids()
    world.stop.ask(15)
    await running
    ends = [line for line in world.lines if line.endswith(": stopped")]
    assert [line.split()[2] for line in ends] == ["router", "engine", "sidecar", "memcached"]
    assert "engine e │ listening" in world.lines
    assert not any(is_alive(pid) for pid in pids)


async def test_a_part_that_crashes_comes_back_under_its_name_and_port_while_others_go_on() -> None:
    world = World((Kind.ENGINE, "chat-0", GOOD), (Kind.ENGINE, "chat-1", GOOD))
    running = asyncio.create_task(world.run())
    await world.until(world.ready.is_set)
    first, other = world.supervisor.keepers
    assert first.process is not None
    assert other.process is not None
    killed, untouched = first.process.pid, other.process.pid
    os.kill(killed, 9)
    await world.until(lambda: first.num_starts == 2 and first.state is State.READY)
    assert first.process.pid != killed
    assert other.process.pid == untouched
    assert any("engine chat-0: was killed by signal 9; starting again in " in line for line in world.lines)
    world.stop.ask(15)
    await running


async def test_a_part_that_was_ready_once_is_never_given_up() -> None:
    crash_soon = LISTEN + "server.accept(); time.sleep(0.05); sys.exit(78)"  # of no use any more
    world = World((Kind.ENGINE, "chat-0", crash_soon))
    running = asyncio.create_task(world.run())
    await world.until(lambda: world.ready.is_set() and world.supervisor.keepers[0].num_starts >= 5)
    world.stop.ask(15)
    await running


async def test_a_part_that_never_starts_is_told_of_with_its_last_lines_and_everything_ends() -> None:
    world = World((Kind.ENGINE, "chat-0", BROKEN), (Kind.MEMCACHED, "m", GOOD))
    with pytest.raises(StartupFailedError) as failure:
        await world.run()
    assert (
        failure.value.lines[0]
        == "engine chat-0: ended with status 3, for the 3rd time, and was never ready: no weights"
    )
    assert "engine chat-0 │ no weights" in failure.value.lines
    assert not any(is_alive(pid) for pid in world.pids())


async def test_a_part_that_says_that_it_never_will_start_is_not_tried_again() -> None:
    world = World((Kind.ENGINE, "chat-0", BROKEN.replace("3", str(CANNOT_START))))
    with pytest.raises(StartupFailedError) as failure:
        await world.run()
    assert failure.value.lines[0] == "engine chat-0: ended with status 78, and was never ready: no weights"
    assert world.supervisor.keepers[0].num_starts == 1


async def test_a_program_that_is_not_there_is_a_failed_start_with_the_reason() -> None:
    world = World((Kind.MEMCACHED, "m", GOOD))
    part = world.plan.parts[0]
    absent = Part(part.kind, part.name, Command(("/nowhere/memcached",)), part.port, None, 5.0, 0.3)
    world.plan = Plan("chat", "smollm2", (absent,), {}, (), ())
    with pytest.raises(StartupFailedError) as failure:
        await world.run()
    assert "memcached m │ /nowhere/memcached: No such file or directory" in failure.value.lines


async def test_a_part_that_is_not_ready_in_time_counts_as_a_failed_start() -> None:
    world = World((Kind.ENGINE, "chat-0", NEVER_READY), startup_seconds=0.1)
    with pytest.raises(StartupFailedError) as failure:
        await world.run()
    assert "was not ready in 0 s" in failure.value.lines[0]


async def test_a_part_that_ignores_sigterm_is_killed_at_its_deadline() -> None:
    world = World((Kind.ENGINE, "chat-0", STUBBORN))
    running = asyncio.create_task(world.run())
    await world.until(world.ready.is_set)
    [pid] = world.pids()
    world.stop.ask(15)
    await running
    assert any("killed: it had not ended" in line for line in world.lines)
    assert not is_alive(pid)


async def test_a_second_request_to_stop_ends_at_once() -> None:
    world = World((Kind.ROUTER, "r", STUBBORN), (Kind.ENGINE, "chat-0", STUBBORN))
    world.plan = Plan(
        "chat", "smollm2", tuple(Part(**{**vars(part), "stop_seconds": 600.0}) for part in world.plan.parts), {}, (), ()
    )
    running = asyncio.create_task(world.run())
    await world.until(world.ready.is_set)
    pids = world.pids()
    world.stop.ask(2)
    await world.until(lambda: any("stopping" in line for line in world.lines))
    asked = time.monotonic()
    world.stop.ask(2)
    await running
    assert time.monotonic() - asked < DEADLINE_SECONDS / 2
    assert not any(is_alive(pid) for pid in pids)


async def test_what_a_part_has_started_ends_with_it() -> None:
    script = (
        "import subprocess; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); "
        "print('child', child.pid, flush=True); time.sleep(300)"
    )
    world = World((Kind.SIDECAR, "chat-0", LISTEN + script))
    running = asyncio.create_task(world.run())
    await world.until(lambda: any(" │ child " in line for line in world.lines))
    grandchild = int(next(line for line in world.lines if " │ child " in line).split()[-1])
    assert is_alive(grandchild)
    os.kill(world.pids()[0], 9)
    await world.until(lambda: not is_alive(grandchild))
    world.stop.ask(15)
    await running
