"""Where the arenas go, and what the user is told before the first part starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagoda_cli.machine import SHARED_MEMORY
from pagoda_cli.memory import arena_bytes
from pagoda_cli.up import _notes, _volume_base
from tests.cli.manifests import pool
from tests.cli.test_memory import MACHINE


def test_arenas_go_to_shared_memory_exactly_while_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    room = arena_bytes(pool())
    assert _volume_base(pool(), replace(MACHINE, shared_memory_bytes=room)) == SHARED_MEMORY
    assert _volume_base(pool(), replace(MACHINE, shared_memory_bytes=room - 1)) == tmp_path


def test_arenas_outside_of_shared_memory_are_warned_of() -> None:
    assert _notes(pool(), MACHINE, SHARED_MEMORY) == []
    [warning] = _notes(pool(), MACHINE, Path("/elsewhere"))
    assert warning.startswith("spec.cache.ram.size: /dev/shm has no room")
    assert "/elsewhere, which is slower" in warning


def test_a_machine_without_memcached_is_told_that_pods_share_nothing() -> None:
    [note] = _notes(pool(), replace(MACHINE, memcached=None), SHARED_MEMORY)
    assert note.startswith("spec.cache.pool.managed: memcached is not installed")


def test_more_engines_than_cores_are_warned_of() -> None:
    [note] = _notes(pool(), replace(MACHINE, num_cores=1), SHARED_MEMORY)
    assert note == "spec.replicas: 2 engines share 1 cores, and will be slow"
