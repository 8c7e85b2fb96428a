"""The certificate authorities, certificates and kubeconfigs of one cluster, made once by `openssl`."""

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from .place import NODE_NAME, Place

OPENSSL_SECONDS = 30.0
# A cluster lives hours; this covers one that somebody keeps.
DAYS = "30"
# The name of every kubeconfig's cluster and context.
CONTEXT = "pagoda-e2e"
API_NAMES = (
    "localhost",
    *(f"kubernetes{rest}" for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local")),
)


@dataclass(frozen=True)
class Certificate:
    """Whom a certificate speaks for, and who signs it."""

    subject: str
    authority: str = "ca"
    # As openssl writes them: IP:… and DNS:…
    alternative_names: tuple[str, ...] = ()


class Certificates:
    """The folder `pki` of a cluster."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.folder = place.state / "pki"

    def key(self, name: str) -> Path:
        """Return the file of the private key of this name."""
        return self.folder / f"{name}.key"

    def certificate(self, name: str) -> Path:
        """Return the file of the certificate of this name."""
        return self.folder / f"{name}.crt"

    def make(self) -> None:
        """Make what is not there yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        for authority in ("ca", "front-proxy-ca"):
            self._make_authority(authority)
        for name, wanted in self._wanted().items():
            self._make_certificate(name, wanted)
        self._make_key("service-accounts")

    def write_kubeconfig(self, client: str, path: Path) -> None:
        """Write the file with which `client` (the name of a certificate) speaks to the API server."""
        credentials = {
            "client-certificate-data": _base64(self.certificate(client)),
            "client-key-data": _base64(self.key(client)),
        }
        path.touch(mode=0o600)
        authority = self.certificate("ca")
        path.write_text(kubeconfig(f"https://{self._place.address}:6443", authority, client, credentials), "utf-8")

    def _wanted(self) -> dict[str, Certificate]:
        ip = self._place.address
        api = (
            *(f"IP:{ip}" for ip in (ip, self._place.api_service, "127.0.0.1")),
            *(f"DNS:{name}" for name in API_NAMES),
        )
        return {
            "apiserver": Certificate("/CN=kube-apiserver", alternative_names=api),
            "apiserver-to-kubelet": Certificate("/O=system:masters/CN=kube-apiserver-to-kubelet"),
            "front-proxy": Certificate("/CN=front-proxy", authority="front-proxy-ca"),
            "admin": Certificate("/O=system:masters/CN=admin"),
            "controller-manager": Certificate("/CN=system:kube-controller-manager"),
            "scheduler": Certificate("/CN=system:kube-scheduler"),
            "proxy": Certificate("/CN=system:kube-proxy"),
            "kubelet": Certificate(
                f"/O=system:nodes/CN=system:node:{NODE_NAME}", alternative_names=(f"IP:{ip}", f"DNS:{NODE_NAME}")
            ),
        }

    def _make_key(self, name: str) -> None:
        if not self.key(name).exists():
            _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self.key(name)))

    def _make_authority(self, name: str) -> None:
        self._make_key(name)
        if not self.certificate(name).exists():
            out = str(self.certificate(name))
            _openssl(
                "req", "-x509", "-new", "-key", str(self.key(name)), "-subj", f"/CN={name}", "-days", DAYS, "-out", out
            )

    def _make_certificate(self, name: str, wanted: Certificate) -> None:
        self._make_key(name)
        if self.certificate(name).exists():
            return
        request = _openssl("req", "-new", "-key", str(self.key(name)), "-subj", wanted.subject)
        extensions = self.folder / f"{name}.ext"
        lines = ["extendedKeyUsage=serverAuth,clientAuth"]
        if wanted.alternative_names:
            lines.append("subjectAltName=" + ",".join(wanted.alternative_names))
        extensions.write_text("\n".join(lines), "utf-8")
        signer = (str(self.certificate(wanted.authority)), str(self.key(wanted.authority)))
        out = str(self.certificate(name))
        _openssl(
            "x509", "-req", "-CA", signer[0], "-CAkey", signer[1], "-CAcreateserial", "-days", DAYS,
            "-extfile", str(extensions), "-out", out, given=request,
        )  # fmt: skip
        extensions.unlink()


def kubeconfig(server: str, authority: Path, user: str, credentials: dict[str, str]) -> str:
    """Return a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
        "users": [{"name": user, "user": credentials}],
    }
    return yaml.safe_dump(document)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str, given: str = "") -> str:
    command = ["openssl", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=OPENSSL_SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
