"""memcached nodes on the cluster, spoken to as their clients do; and one that is not the pool's own, with TLS."""

import base64
import json
import secrets
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster import part_images
from e2e.cluster.handle import Cluster
from pagoda_protocol.tenants import POOL_SECRET_BYTES, digest_secret
from tests.support.certificates import make_authority

PORT = 11211
SECONDS = 10.0
_NAME = "outside-memcached"


@dataclass(frozen=True)
class Memcached:
    """A node, and how it is spoken to."""

    ip: str
    username: str
    password: str
    host: str = ""
    """What its certificate says."""
    tls: ssl.SSLContext | None = None

    def stats(self) -> dict[str, str]:
        """Log in and return its counters; OSError if the connection is refused, the password is or TLS."""
        login = f"{self.username} {self.password}"
        with self._connected() as wire, wire.makefile("rwb") as lines:
            lines.write(f"set login 0 0 {len(login)}\r\n{login}\r\nstats\r\n".encode())
            lines.flush()
            said = lines.readline()
            if said != b"STORED\r\n":
                raise ConnectionError(f"the login was answered {said!r}")
            told = iter(lines.readline, b"END\r\n")
            return dict(line.decode().split()[1:3] for line in told)

    def _connected(self) -> socket.socket:
        peer = socket.create_connection((self.ip, PORT), timeout=SECONDS)
        return peer if self.tls is None else self.tls.wrap_socket(peer, server_hostname=self.host)


@dataclass(frozen=True)
class Outside:
    """A memcached that somebody else runs in the pool's namespace, with TLS, client certificates and a password."""

    node: Memcached
    stranger: ssl.SSLContext
    """Trusts the node's authority and has no certificate."""
    cache: dict[str, Any]
    """`spec.cache` of a pool that uses it."""

    @property
    def address(self) -> str:
        """Where pools find it."""
        return f"{self.node.host}:{PORT}"


def run_outside(cluster: Cluster, namespace: str, folder: Path, example: dict[str, Any]) -> Outside:
    """Start it, and make the Secrets that `example`, the spec.cache of a pool with such nodes, speaks of."""
    host = f"{_NAME}.{namespace}.svc"
    authority = make_authority(folder)
    server, client = authority.issue("server", [host]), authority.issue("client")
    password, pool_secret = secrets.token_hex(), secrets.token_bytes(POOL_SECRET_BYTES)
    external = example["pool"]["external"]
    own = authority.own.certificate.read_bytes()
    contents = {
        _NAME: {
            "ca.crt": own,
            "tls.crt": server.certificate.read_bytes(),
            "tls.key": server.key.read_bytes(),
            "auth": f"pagoda:{password}\n".encode(),
        },
        external["tlsSecretRef"]["name"]: {
            "ca.crt": own,
            "tls.crt": client.certificate.read_bytes(),
            "tls.key": client.key.read_bytes(),
        },
        external["authSecretRef"]["name"]: {"username": b"pagoda", "password": password.encode()},
        example["secretRef"]["name"]: {"pool": pool_secret, "digest": digest_secret(pool_secret)},
    }
    manifests = [*(_secret(name, data) for name, data in contents.items()), _service(), _pod()]
    document = {"apiVersion": "v1", "kind": "List", "items": manifests}
    cluster.kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(document))
    cluster.kubectl("wait", f"pod/{_NAME}", "-n", namespace, "--for=condition=Ready", "--timeout=55s")
    ip = cluster.kubectl_json("get", "pod", _NAME, "-n", namespace)["status"]["podIP"]
    node = Memcached(ip, "pagoda", password, host, authority.context(client))
    cache = {"pool": {"external": external | {"addresses": [f"{host}:{PORT}"]}}, "secretRef": example["secretRef"]}
    return Outside(node, authority.context(), cache)


def said_in_plain_text(node: Memcached) -> bytes:
    """Return what a node answers to somebody who speaks memcached's protocol at once."""
    with socket.create_connection((node.ip, PORT), timeout=SECONDS) as peer:
        peer.sendall(b"version\r\n")
        try:
            return peer.recv(1000)
        except ConnectionResetError:
            return b""


def _secret(name: str, data: dict[str, bytes]) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def _service() -> dict[str, Any]:
    spec = {"selector": {"app": _NAME}, "ports": [{"port": PORT}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _NAME}, "spec": spec}


def _pod() -> dict[str, Any]:
    files = "/etc/memcached"
    tls = f"ssl_chain_cert={files}/tls.crt,ssl_key={files}/tls.key,ssl_ca_cert={files}/ca.crt,ssl_verify_mode=2"
    container = {
        "name": "memcached",
        "image": part_images.name("memcached"),
        "imagePullPolicy": "Never",
        "args": ["-m", "64", "-Z", "-o", tls, "-Y", f"{files}/auth"],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "files", "mountPath": files, "readOnly": True}],
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "files", "secret": {"secretName": _NAME, "defaultMode": 0o440}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": _NAME, "labels": {"app": _NAME}}, "spec": spec}
