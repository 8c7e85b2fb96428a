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


@pytest.mark.parametrize("of", [pool(), pool(spec__cache={"disk": {"size": "1Pi"}})], ids=["no disk", "no ram"])
def test_a_pool_that_uses_no_disk_needs_no_room(of: object, tmp_path: Path, free: dict[str, int]) -> None:
    assert disks.disk_problem(of, tmp_path) is None  # type: ignore[arg-type]
