"""Certificates for tests, made by the openssl program: an authority, servers, clients.

    authority = make_authority(folder)
    server = authority.issue("server", hosts=["127.0.0.1", "localhost"])
    server.certificate, server.key        # paths, PEM

Keys are readable by all, because memcached gives up root before it reads them: use a folder of the test's own.
"""

import ipaddress
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl program is not installed")


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """Signs certificates; `own` is what peers trust."""

    folder: Path
    own: Issued

    def issue(self, name: str, hosts: Sequence[str] = ()) -> Issued:
        """Return a fresh certificate for `hosts` (names or IP addresses); none: a client's."""
        extensions = ["basicConstraints=critical,CA:FALSE"]
        if hosts:
            extensions.append("subjectAltName=" + ",".join(map(_alternative, hosts)))
        signer = ["-CA", str(self.own.certificate), "-CAkey", str(self.own.key)]
        return _make(self.folder, name, extensions, signer)

    def server_flags(self, server: Issued, *, wants_client: bool = False) -> list[str]:
        """Return memcached's flags for TLS with `server`."""
        options = f"ssl_chain_cert={server.certificate},ssl_key={server.key},ssl_ca_cert={self.own.certificate}"
        return ["-Z", "-o", f"{options},ssl_verify_mode={2 if wants_client else 0}"]

    def context(self, client: Issued | None = None) -> ssl.SSLContext:
        """Return what a client needs that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.own.certificate))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        return context

    def write_folder(self, folder: Path, client: Issued | None = None) -> Path:
        """Write what `--pool-tls-dir` expects; return the folder."""
        folder.mkdir(exist_ok=True)
        shutil.copy(self.own.certificate, folder / "ca.crt")
        for name, source in (("tls.crt", client and client.certificate), ("tls.key", client and client.key)):
            (folder / name).unlink(missing_ok=True)
            if source is not None:
                shutil.copy(source, folder / name)
        return folder


@contextmanager
def certificate_folder() -> Iterator[Path]:
    """Yield a folder that other users may look into; it goes with the context."""
    with tempfile.TemporaryDirectory(prefix="pagoda-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def make_authority(folder: Path, name: str = "authority") -> Authority:
    """Make an authority whose files are in `folder`."""
    return Authority(folder, _make(folder, name, ["keyUsage=critical,keyCertSign"], []))


def _make(folder: Path, name: str, extensions: Sequence[str], signer: Sequence[str]) -> Issued:
    issued = Issued(folder / f"{name}.crt", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(issued.key), "-out", str(issued.certificate), "-subj", f"/CN={name}", "-days", "2"]
    for extension in extensions:
        command += ["-addext", extension]
    subprocess.run([*command, *signer], check=True, capture_output=True)
    issued.key.chmod(0o644)
    return issued


def _alternative(host: str) -> str:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return f"DNS:{host}"
    return f"IP:{host}"
