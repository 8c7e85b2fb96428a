import base64
import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pagoda_operator.children import render_secrets
from pagoda_protocol.tenants import POOL_SECRET_BYTES
from pagoda_runtime.files import read_pool_secret
from pagoda_sidecar.pool.access import Credentials, read_access
from tests.operator.children.pools import POOLS, containers_of, owner_of, templates_of


def counting() -> Callable[[int], bytes]:
    """Return a source of bytes that never gives the same ones twice."""
    calls = iter(range(1, 256))
    return lambda num_bytes: bytes([next(calls)]) * num_bytes


def secrets_of(name: str) -> dict[str, dict[str, Any]]:
    rendered = render_secrets(POOLS[name], owner_of(POOLS[name]), counting())
    return {secret["metadata"]["name"]: secret for secret in rendered}


def mounted(secret: dict[str, Any], folder: Path) -> Path:
    folder.mkdir()
    for key, value in secret["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))
    return folder


def test_engines_and_sidecars_can_use_the_pool_secret(tmp_path: Path) -> None:
    (secret,) = secrets_of("ram").values()
    key, digest = read_pool_secret(mounted(secret, tmp_path / "secret"))
    assert key == b"\x01" * POOL_SECRET_BYTES
    assert digest == hmac.new(key, b"digest", hashlib.sha256).digest()


def test_sidecars_can_show_what_the_nodes_ask_for(tmp_path: Path) -> None:
    folder = mounted(secrets_of("all-tiers")["all-tiers-mc-0f1e2d3c"], tmp_path / "auth")
    credentials = read_access(None, folder).credentials
    assert credentials == Credentials(b"pagoda", (folder / "password").read_bytes())
    assert (folder / "auth").read_bytes() == credentials.username + b":" + credentials.password + b"\n"
    assert len(credentials.password) >= 32


def test_no_two_keys_are_of_the_same_random_bytes() -> None:
    pool, nodes = secrets_of("all-tiers").values()
    assert bytes.fromhex(base64.b64decode(nodes["data"]["password"]).decode()) != base64.b64decode(pool["data"]["pool"])


def test_a_secret_is_made_only_where_the_pool_names_none_and_nodes_are_ours() -> None:
    assert set(secrets_of("least")) == {"least-0f1e2d3c"}
    assert set(secrets_of("all-tiers")) == {"all-tiers-0f1e2d3c", "all-tiers-mc-0f1e2d3c"}
    assert set(secrets_of("external")) == set()


def test_pods_mount_the_secrets_that_are_made_or_that_the_pool_names() -> None:
    named_by_pool = {"ram": {"keys"}, "external": {"shared", "mc-tls", "mc-auth"}}
    for name, pool in POOLS.items():
        mounts = {
            volume["secret"]["secretName"]
            for template in templates_of(pool).values()
            for volume in template["spec"]["volumes"]
            if "secret" in volume
        }
        assert mounts == set(secrets_of(name)) | named_by_pool.get(name, set())


def test_a_node_asks_for_the_file_that_is_mounted() -> None:
    template = templates_of(POOLS["all-tiers"])["memcached"]
    (node,) = containers_of(template).values()
    path = node["args"][node["args"].index("-Y") + 1]
    (place,) = node["volumeMounts"]
    (volume,) = template["spec"]["volumes"]
    assert path == f"{place['mountPath']}/{volume['secret']['items'][0]['path']}"
    assert volume["secret"]["secretName"] in secrets_of("all-tiers")
