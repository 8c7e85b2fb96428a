"""What outlives a run and what must not: lock, secrets, volumes, ports."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from pagoda_cli.keys import prepare_secrets, secret_problems
from pagoda_cli.ports import free_ports, is_free, outgoing_start
from pagoda_cli.problems import RefusedError
from pagoda_cli.state import StateFolder, default_state, locked, run_folder
from pagoda_cli.volumes import remove_leftovers, room_problem, socket_problem, volume_folder
from pagoda_protocol.tenants import digest_secret, key_hash
from tests.cli.manifests import pool


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def test_the_pool_secret_is_made_once_and_only_its_owner_reads_it(state: StateFolder) -> None:
    with run_folder(state):
        prepare_secrets(pool(), state)
        folder = state.secret("chat-pool-secret")
        secret = (folder / "pool").read_bytes()
        assert len(secret) == 32
        assert (folder / "digest").read_bytes() == digest_secret(secret)
        assert {mode(folder / name) for name in ("pool", "digest")} == {0o600}
        assert mode(folder) == 0o700
        prepare_secrets(pool(), state)
        assert (folder / "pool").read_bytes() == secret
    assert (folder / "pool").read_bytes() == secret


def test_the_routers_folder_holds_the_digest_key_alone_and_is_gone_after_the_run(state: StateFolder) -> None:
    with run_folder(state):
        prepare_secrets(pool(), state)
        assert [path.name for path in state.router_secret.iterdir()] == ["digest"]
        assert mode(state.router_secret / "digest") == 0o600
    assert not state.run.exists()


def test_a_secret_that_the_user_brings_gets_its_digest_and_is_checked(state: StateFolder) -> None:
    shared = pool(spec__cache__secretRef={"name": "shared"})
    folder = state.secret("shared")
    assert len(secret_problems(shared, state)) == 1
    folder.mkdir(parents=True)
    (folder / "pool").write_bytes(b"k" * 31)
    assert "holds 31 bytes" in secret_problems(shared, state)[0]
    (folder / "pool").write_bytes(b"k" * 32)
    (folder / "digest").write_bytes(b"d" * 32)
    assert "does not derive" in secret_problems(shared, state)[0]
    (folder / "digest").unlink()
    assert secret_problems(shared, state) == []
    with run_folder(state):
        prepare_secrets(shared, state)
    assert (folder / "digest").read_bytes() == digest_secret(b"k" * 32)


def test_a_generated_secret_that_was_damaged_is_refused(state: StateFolder) -> None:
    with run_folder(state):
        prepare_secrets(pool(), state)
    (state.secret("chat-pool-secret") / "pool").write_bytes(b"")
    assert "holds 0 bytes" in secret_problems(pool(), state)[0]


def test_api_keys_must_be_there_and_be_a_tenants_file(state: StateFolder) -> None:
    tenants = pool(spec__tenancy__apiKeysSecretRef={"name": "tenants"})
    file = state.secret("tenants") / "tenants.json"
    assert str(file) in secret_problems(tenants, state)[0]
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert "tenants" in secret_problems(tenants, state)[0]
    file.write_text(json.dumps({"tenants": [{"name": "acme", "keyHashes": [key_hash("secret")]}]}))
    assert secret_problems(tenants, state) == []
    file.chmod(0o644)
    with run_folder(state):
        prepare_secrets(tenants, state)
    assert mode(file) == 0o600


def test_a_pool_runs_once_at_a_time(state: StateFolder) -> None:
    with locked(state), pytest.raises(RefusedError) as refusal, locked(state):
        pass
    assert f"already running (process {os.getpid()}" in str(refusal.value)
    with locked(state):
        pass


def test_state_lives_where_xdg_says_if_it_says_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert default_state("chat") == Path("/xdg/pagoda/chat")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_state("chat") == Path("/home/someone/.local/state/pagoda/chat")


def test_volumes_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    dead = tmp_path / "pagoda-dead"
    (dead / "chat-0").mkdir(parents=True)
    (dead / "owner").touch()
    foreign = tmp_path / "pagoda-foreign"
    foreign.mkdir()
    link = tmp_path / "pagoda-link"
    link.symlink_to(foreign)
    with volume_folder(tmp_path) as living:
        assert mode(living) == 0o700
        assert remove_leftovers((tmp_path, tmp_path)) == [dead]
        assert living.exists()
    assert not dead.exists()
    assert not living.exists()
    assert foreign.exists()
    assert link.is_symlink()


def test_a_socket_path_that_the_kernel_would_refuse_is_found_before(tmp_path: Path) -> None:
    assert socket_problem(Path("/dev/shm"), "a" * 43) is None
    problem = socket_problem(Path("/" + "x" * 90), "chat-0")
    assert problem is not None
    assert "more than the 107" in problem


def test_volumes_that_do_not_fit_anywhere_are_found_before() -> None:
    assert room_problem(Path("/tmp"), 64 * 1024**2, 64 * 1024**2) is None
    problem = room_problem(Path("/tmp"), 64 * 1024**2 - 1, 64 * 1024**2)
    assert problem is not None
    said = "spec.cache.ram.size: the RAM tiers' files need 64.0Mi of /tmp, which has 64.0Mi free; lower"
    assert problem.startswith(said)


def test_free_ports_are_different_free_and_below_the_outgoing_ones() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
    assert max(ports) < outgoing_start()


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not is_free(server.getsockname()[1])
