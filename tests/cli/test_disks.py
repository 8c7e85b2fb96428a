"""Room for disk tiers: what an earlier run left there counts as room, for it is used again."""

from pathlib import Path

import pytest

from pagoda_cli import disks
from tests.cli.manifests import pool

WITH_DISK = pool(spec__cache__disk={"size": "64Mi"})


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    room = {"bytes": 0}
    monkeypatch.setattr(disks, "free_bytes", lambda folder: room["bytes"])
    return room


def test_tiers_that_do_not_fit_are_refused_by_field(tmp_path: Path, free: dict[str, int]) -> None:
    free["bytes"] = 128 * 2**20 - 1
    problem = disks.disk_problem(WITH_DISK, tmp_path / "not" / "yet" / "there")
    assert problem is not None
    assert problem.startswith("spec.cache.disk.size: 2 × 64Mi do not fit")
    free["bytes"] += 1
    assert disks.disk_problem(WITH_DISK, tmp_path / "not" / "yet" / "there") is None


def test_what_lies_there_already_is_room(tmp_path: Path, free: dict[str, int]) -> None:
    (tmp_path / "chat-0").mkdir()
    (tmp_path / "chat-0" / "segment").write_bytes(bytes(2**20))
    free["bytes"] = 127 * 2**20
    assert disks.disk_problem(WITH_DISK, tmp_path) is None


def test_a_pool_that_uses_no_disk_needs_no_room(tmp_path: Path, free: dict[str, int]) -> None:
    assert disks.disk_problem(pool(), tmp_path) is None


def test_disk_tiers_of_pods_that_are_no_more_are_removed_and_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    state = tmp_path / "disk"
    names = ["chat-0", "chat-1", "chat-12", "chat-x", "chat-02", "chat", "chat-1.old", "other-1", "my-chat-1"]
    for folder in (outside, *(state / name for name in names)):
        folder.mkdir(parents=True)
        (folder / "segment").write_bytes(b"records")
    (state / "chat-3").symlink_to(outside)
    (state / "chat-4").write_bytes(b"a file")
    removed = disks.remove_unused("chat", state, [str(state / "chat-0")])
    assert [folder.name for folder in removed] == ["chat-1", "chat-12"]
    left = {folder.name for folder in state.iterdir()}
    assert left == set(names) - {"chat-1", "chat-12"} | {"chat-3", "chat-4"}
    assert (outside / "segment").exists()
    assert (state / "chat-0" / "segment").exists()


def test_a_pool_without_disk_tiers_keeps_none_and_one_that_never_had_any_is_fine(tmp_path: Path) -> None:
    (tmp_path / "chat-0").mkdir()
    assert disks.remove_unused("chat", tmp_path, []) == [tmp_path / "chat-0"]
    assert disks.remove_unused("chat", tmp_path / "never", []) == []
