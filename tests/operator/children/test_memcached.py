import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from pagoda_protocol.pool.quantities import GIBI, MEBI, parse_bytes
from tests.operator.children.pools import POOLS, children_of, containers_of, templates_of
from tests.support.memcached import needs_memcached
from tests.support.ports import free_port


def node_of(name: str) -> dict[str, Any]:
    return containers_of(templates_of(POOLS[name])["memcached"])["memcached"]


def flag(container: dict[str, Any], name: str) -> str:
    value: str = container["args"][container["args"].index(name) + 1]
    return value


@pytest.mark.parametrize(
    ("name", "memory", "item"), [("all-tiers", 8 * GIBI, 128 * MEBI), ("longest-name", 64 * MEBI, 32 * MEBI)]
)
def test_a_nodes_flags_and_limit_derive_from_its_memory(name: str, memory: int, item: int) -> None:
    node = node_of(name)
    assert int(flag(node, "-m")) * MEBI == memory
    assert int(flag(node, "-I")) == item
    assert parse_bytes(node["resources"]["limits"]["memory"]) > memory + 64 * MEBI


def test_nodes_start_and_end_all_at_once_and_have_names() -> None:
    spec = children_of(POOLS["all-tiers"])["StatefulSet", "all-tiers-memcached"]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["replicas"] == 3
    service = children_of(POOLS["all-tiers"])["Service", spec["serviceName"]]["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items()


def test_a_node_that_no_root_starts_becomes_nobody_else() -> None:
    assert "-u" not in node_of("all-tiers")["args"]


@needs_memcached
def test_the_real_memcached_takes_the_flags_and_asks_for_the_password(tmp_path: Path) -> None:
    node, auth, port = node_of("longest-name"), tmp_path / "auth", free_port()
    auth.write_text("pagoda:secret\n")
    here = {flag(node, "-Y"): str(auth), "11211": str(port), "0.0.0.0": "127.0.0.1"}
    program = shutil.which("memcached")
    assert program is not None
    as_ourselves = ("-u", getpass.getuser())  # in a pod nobody is root
    process = subprocess.Popen([program, *(here.get(word, word) for word in node["args"]), *as_ourselves])
    try:
        with connected(port, process) as stream:
            assert ask(stream, b"set a 0 0 1\r\nx\r\n").startswith(b"CLIENT_ERROR")
            assert ask(stream, b"set a 0 0 13\r\npagoda secret\r\n") == b"STORED\r\n"
            assert ask(stream, b"mn\r\n") == b"MN\r\n"
    finally:
        process.kill()
        process.wait()


def connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        assert process.poll() is None, "it has ended"
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "it listens nowhere"
            time.sleep(0.02)


def ask(stream: socket.socket, request: bytes) -> bytes:
    stream.sendall(request)
    return stream.recv(4096)
