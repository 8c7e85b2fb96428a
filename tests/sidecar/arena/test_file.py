"""The arena file: whole from the first moment, kept when it is good, made anew when it is not."""

import errno
import os
from pathlib import Path

import pytest

from pagoda_sidecar.arena import file as arena_file
from pagoda_sidecar.arena.engine_lock import EngineLock, LockHeldError, is_free
from pagoda_sidecar.arena.file import ArenaError, ArenaFile, allocate, open_kept
from pagoda_sidecar.arena.layout import fixed_geometry

SIZE = 2**20 + 4096


def made(path: Path, size: int = SIZE) -> ArenaFile:
    return allocate(path, size, lambda done: None, lambda: False)


def test_every_byte_is_allocated_and_the_size_is_exact(tmp_path: Path) -> None:
    progress: list[int] = []
    arena = allocate(tmp_path / "arena", SIZE, progress.append, lambda: False)
    status = (tmp_path / "arena").stat()
    assert status.st_size == SIZE
    assert status.st_blocks * 512 >= SIZE
    assert status.st_mode & 0o777 == 0o600
    assert progress[-1] == SIZE
    arena.close()


def test_a_good_arena_is_kept_and_counts_its_boots(tmp_path: Path) -> None:
    arena = made(tmp_path / "arena")
    arena.fix_geometry(5000)
    arena.payload(3)[:] = b"x" * 5000
    epoch = arena.epoch
    arena.close()
    for boot in (2, 3):
        kept = open_kept(tmp_path / "arena", SIZE)
        assert (kept.epoch, kept.boot_count, kept.geometry) == (epoch, boot, fixed_geometry(SIZE, 5000))
        assert bytes(kept.payload(3)) == b"x" * 5000
        kept.close()


@pytest.mark.parametrize("damage", ["crc", "size", "sparse", "missing", "link"])
def test_anything_else_is_not_kept(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "arena"
    made(path).close()
    if damage == "crc":
        with path.open("r+b") as file:
            file.seek(10)
            file.write(b"?")
    elif damage == "size":
        os.truncate(path, SIZE - 4096)
    elif damage == "sparse":
        path.unlink()
        with path.open("wb") as file:
            file.truncate(SIZE)
    elif damage == "missing":
        path.unlink()
    else:
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    with pytest.raises(ArenaError):
        open_kept(path, SIZE)


def test_making_one_anew_never_touches_the_former_file(tmp_path: Path) -> None:
    former = made(tmp_path / "arena")
    former.fix_geometry(5000)
    former.payload(0)[:] = b"o" * 5000
    anew = made(tmp_path / "arena", 2 * SIZE)
    assert bytes(former.payload(0)) == b"o" * 5000
    assert former.epoch != anew.epoch
    former.close()
    anew.close()


def test_no_room_is_known_before_the_volume_is_filled(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="no room for an arena of"):
        made(tmp_path / "arena", 2**50)
    assert not (tmp_path / "arena").exists()


def test_room_that_vanishes_meanwhile_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arena_file.os, "posix_fallocate", full)
    with pytest.raises(ArenaError, match="no room for an arena of"):
        made(tmp_path / "arena")
    assert not (tmp_path / "arena").exists()


def test_allocating_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="cancelled"):
        allocate(tmp_path / "arena", SIZE, lambda done: None, lambda: True)
    assert not (tmp_path / "arena").exists()


def test_the_engine_lock_is_exclusive_and_seen_from_outside(tmp_path: Path) -> None:
    assert is_free(tmp_path / "engine.lock")
    lock = EngineLock(tmp_path / "engine.lock")
    assert not is_free(tmp_path / "engine.lock")
    with pytest.raises(LockHeldError):
        EngineLock(tmp_path / "engine.lock")
    lock.release()
    lock.release()
    assert is_free(tmp_path / "engine.lock")
