"""Key files and live files, on a real file system."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from pagoda_protocol.tenants import digest_secret
from pagoda_runtime.files import POLL_SECONDS, KeyFileError, LiveFile, read_digest_key, read_pool_secret
from tests.support.in_a_pod import mount


@pytest.fixture
def secret(tmp_path: Path) -> bytes:
    pool = bytes(range(32))
    (tmp_path / "pool").write_bytes(pool)
    (tmp_path / "digest").write_bytes(digest_secret(pool))
    return pool


def test_a_pool_secret_and_its_digest_key_are_read(tmp_path: Path, secret: bytes) -> None:
    assert read_pool_secret(tmp_path) == (secret, digest_secret(secret))


def test_a_router_needs_the_digest_key_alone(tmp_path: Path, secret: bytes) -> None:
    (tmp_path / "pool").unlink()
    assert read_digest_key(tmp_path) == digest_secret(secret)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("digest", bytes(32), "is not HMAC"),
        ("pool", b"short", "expected 32 random bytes, found 5"),
        ("pool", None, "cannot be read"),
    ],
)
def test_a_wrong_key_file_is_named(
    tmp_path: Path, secret: bytes, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(KeyFileError, match=message):
        read_pool_secret(tmp_path)


def replace(path: Path, text: str) -> None:
    """Replace a file as a mounted ConfigMap is replaced: by a rename."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def test_a_live_file_gives_the_new_value_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("[1]")
    live = LiveFile(path, json.loads)
    assert live.value == [1]
    assert not live.refresh()
    replace(path, "[1, 2]")
    assert live.refresh()
    assert live.value == [1, 2]
    replace(path, "[1, 2")
    assert not live.refresh()
    path.unlink()
    assert not live.refresh()
    assert live.value == [1, 2]
    replace(path, "[3]")
    assert live.refresh()
    assert live.value == [3]


def test_a_file_that_may_be_absent_has_a_value_before_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    live = LiveFile(path, json.loads, absent=[0])
    assert live.value == [0]
    assert not live.refresh()
    replace(path, "[1]")
    assert live.refresh()
    assert live.value == [1]
    path.unlink()
    assert not live.refresh()
    assert live.value == [1], "what was there once is kept"
    with pytest.raises(FileNotFoundError):
        LiveFile(path, json.loads)


def test_a_problem_is_logged_once_for_each_version(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "settings.json"
    path.write_text("[1]")
    live = LiveFile(path, json.loads)
    for text, num_logged in (("[1, 2", 1), ("[1, 2,", 2)):
        replace(path, text)
        for _ in range(3):
            live.refresh()
        assert len(caplog.records) == num_logged
    path.unlink()
    for _ in range(3):
        live.refresh()
    assert len(caplog.records) == 3


async def test_a_followed_file_calls_back_with_each_new_value(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("1")
    seen: asyncio.Queue[int] = asyncio.Queue()
    live = LiveFile(path, json.loads)
    async with live.following(seen.put_nowait):
        replace(path, "2")
        assert await asyncio.wait_for(seen.get(), 10) == 2


async def test_a_version_that_cannot_even_be_parsed_or_applied_does_not_end_the_following(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("1")
    seen: asyncio.Queue[int] = asyncio.Queue()

    def apply(value: int) -> None:
        seen.put_nowait(value)
        if value == 2:
            raise RuntimeError

    async with LiveFile(path, json.loads).following(apply):
        for text in ("[" * 100_000, "2", "3"):
            replace(path, text)
            await asyncio.sleep(2 * POLL_SECONDS)
    assert [seen.get_nowait(), seen.get_nowait()] == [2, 3]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
async def test_nothing_but_a_regular_file_is_read_and_the_last_good_version_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text("1")
    seen: asyncio.Queue[int] = asyncio.Queue()
    live = LiveFile(path, json.loads)
    async with live.following(seen.put_nowait):
        path.unlink()
        {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda path: os.symlink("/dev/zero", path)}[kind](path)
        await asyncio.wait_for(asyncio.sleep(3 * POLL_SECONDS), 10)
        assert live.value == 1
        assert len(caplog.messages) == 1, "said once"
        assert "is not a regular file" in caplog.messages[0]
        with pytest.raises(OSError, match="regular"):
            LiveFile(path, json.loads, absent=0)
        os.rmdir(path) if kind == "folder" else path.unlink()
        path.write_text("2")
        assert await asyncio.wait_for(seen.get(), 10) == 2


def test_a_key_that_is_no_regular_file_is_refused(tmp_path: Path, secret: bytes) -> None:
    (tmp_path / "digest").unlink()
    os.mkfifo(tmp_path / "digest")
    with pytest.raises(KeyFileError, match="not a regular file"):
        read_digest_key(tmp_path)


def test_a_live_file_that_is_bad_from_the_start_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{")
    with pytest.raises(ValueError):
        LiveFile(path, json.loads)


def test_what_kubernetes_mounts_is_read_and_followed_through_its_links(tmp_path: Path) -> None:
    pool = bytes(range(32))
    mount(tmp_path / "secret", {"pool": pool, "digest": digest_secret(pool)})
    assert read_pool_secret(tmp_path / "secret") == (pool, digest_secret(pool))
    mount(tmp_path / "settings", {"a": b"one"})
    file = LiveFile(tmp_path / "settings" / "a", str)
    assert not file.refresh()
    mount(tmp_path / "settings", {"a": b"two"})  # as long and as new as the former one
    assert file.refresh()
    assert file.value == "two"
    (tmp_path / "settings" / "..data").unlink()
    assert not file.refresh()
    assert file.value == "two", "a mount that is being replaced takes nothing away"
