"""How a node is approached: TLS, with a client certificate where it wants one, and memcached's own user and password.

What stands here is secret: it is never formatted, logged or compared in an error.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

CA_FILE = "ca.crt"
CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
USERNAME_FILE = "username"
PASSWORD_FILE = "password"

_MAX_CREDENTIAL_BYTES = 255  # an entry of memcached's file


class AccessError(ValueError):
    """A file is missing or unusable; the message names it and holds nothing of its content."""


@dataclass(frozen=True)
class Credentials:
    """One line of memcached's authentication file."""

    username: bytes = field(repr=False)
    password: bytes = field(repr=False)


@dataclass(frozen=True)
class Access:
    """None: plain TCP, nobody asks who we are."""

    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None


def access_files(tls_dir: Path | None, auth_dir: Path | None) -> list[Path]:
    """Return all files that `read_access` may look at."""
    files = [] if tls_dir is None else [tls_dir / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
    return files + ([] if auth_dir is None else [auth_dir / name for name in (USERNAME_FILE, PASSWORD_FILE)])


def read_access(tls_dir: Path | None, auth_dir: Path | None) -> Access:
    """Read what the mounted folders hold; None means that it is not wanted.

    Raises:
        AccessError: a file is missing or unusable.
    """
    tls = None if tls_dir is None else _read_tls(tls_dir)
    return Access(tls, None if auth_dir is None else _read_credentials(auth_dir))


def _read_tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the certificate and the host
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    authority = folder / CA_FILE
    try:
        context.load_verify_locations(cadata=_read(authority).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise AccessError(f"{authority}: holds no usable certificates in PEM") from error
    certificate, key = folder / CERTIFICATE_FILE, folder / KEY_FILE
    if not certificate.exists() and not key.exists():
        return context
    for path in (certificate, key):
        _read(path)
    try:
        context.load_cert_chain(certificate, key, password="")  # never asks at a terminal
    except (OSError, ValueError) as error:
        raise AccessError(f"{certificate}, {key}: are no certificate and its unencrypted key in PEM") from error
    return context


def _read_credentials(folder: Path) -> Credentials:
    return Credentials(_read_word(folder / USERNAME_FILE, b" :"), _read_word(folder / PASSWORD_FILE, b" "))


def _read_word(path: Path, forbidden: bytes) -> bytes:
    """Read a file of one line that memcached can compare: it divides at spaces."""
    word = _read(path).removesuffix(b"\n").removesuffix(b"\r")
    is_printable = all(32 <= byte != 127 and byte not in forbidden for byte in word)
    if not 1 <= len(word) <= _MAX_CREDENTIAL_BYTES or not is_printable:
        raise AccessError(f"{path}: expected 1 to {_MAX_CREDENTIAL_BYTES} bytes without any of {forbidden.decode()!r}")
    return word


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: cannot be read: {error.strerror}") from error
