"""Looking at a file on a mount that hangs, which is played by a status call that does not come back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagoda_runtime import watch
from pagoda_runtime.watch import Watch


class HungMount:
    def __init__(self) -> None:
        self.num_calls = 0
        self.answers = threading.Event()
        self.answers.set()


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungMount]:
    mount = HungMount()
    read = watch.read_regular

    def wait_and_read(path: Path) -> object:
        mount.num_calls += 1
        assert mount.answers.wait(30)
        return read(path)

    monkeypatch.setattr(watch, "READ_SECONDS", 0.1)
    monkeypatch.setattr(watch, "read_regular", wait_and_read)
    yield mount
    mount.answers.set()


async def test_a_hung_mount_holds_up_no_loop_and_keeps_one_thread(tmp_path: Path, mount: HungMount) -> None:
    path = tmp_path / "settings.json"
    path.write_text("1")
    watched = Watch(path)
    mount.answers.clear()
    turns = asyncio.create_task(count_turns())
    look = await watched.look(None)
    assert isinstance(look.problem, TimeoutError)
    turns.cancel()
    assert await turns > 1
    started = time.monotonic()
    for _ in range(20):
        assert isinstance((await watched.look(None)).problem, TimeoutError)
        assert isinstance(watched.look_now(None).problem, TimeoutError)
    assert time.monotonic() - started < 1, "it is waited for once"
    assert mount.num_calls == 1
    mount.answers.set()
    end = time.monotonic() + 20
    while (look := await watched.look(None)).problem is not None:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    assert look.content == b"1"


async def count_turns() -> int:
    num_turns = 0
    try:
        while True:
            await asyncio.sleep(0.005)
            num_turns += 1
    except asyncio.CancelledError:
        return num_turns


def test_what_is_known_is_not_read_again(tmp_path: Path, mount: HungMount) -> None:
    path = tmp_path / "settings.json"
    path.write_text("1")
    watched = Watch(path)
    first = watched.look_now(None)
    assert first.content == b"1"
    second = watched.look_now(first.identity)
    assert (second.identity, second.content, second.problem) == (first.identity, None, None)
    assert mount.num_calls == 1
