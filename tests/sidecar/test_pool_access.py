"""Certificates and credentials in mounted folders, followed while the sidecar runs."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagoda_runtime.metrics import Metrics
from pagoda_sidecar.pool import AccessError, read_access
from pagoda_sidecar.pool_access import PoolAccessFiles
from pagoda_sidecar.pool_thread import PoolThread
from tests.support.certificates import certificate_folder, make_authority, needs_openssl


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A folder with `tls` (all files) and `other` (another authority's)."""
    with certificate_folder() as folder:
        for name in ("tls", "other"):
            authority = make_authority(folder, name)
            authority.write_folder(folder / name, authority.issue(f"{name}-client"))
        yield folder


@pytest.fixture
def tls_dir(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "tls", tmp_path / "tls"))


@pytest.fixture
def auth_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "auth"
    folder.mkdir()
    (folder / "username").write_text("chat\n")
    (folder / "password").write_text("pass:word")
    return folder


@needs_openssl
def test_what_the_folders_hold_is_read(tls_dir: Path, auth_dir: Path) -> None:
    access = read_access(tls_dir, auth_dir)
    assert access.tls is not None
    assert access.tls.check_hostname
    assert access.credentials is not None
    assert (access.credentials.username, access.credentials.password) == (b"chat", b"pass:word")
    (tls_dir / "tls.crt").unlink()
    (tls_dir / "tls.key").unlink()
    assert read_access(tls_dir, None).tls is not None  # a client certificate is optional
    assert read_access(None, None) == read_access(None, None)


@needs_openssl
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ca.crt", None),
        ("ca.crt", b""),
        ("ca.crt", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
        ("ca.crt", b"\xff\xfe"),
        ("tls.crt", None),
        ("tls.key", None),
        ("tls.crt", b"nonsense"),
        ("tls.key", "other"),
        ("tls.key", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"),
        ("username", None),
        ("username", b""),
        ("username", b"a b"),
        ("username", b"a:b"),
        ("password", b"a b"),
        ("password", b"a\nb"),
        ("password", b"x" * 256),
    ],
)
def test_a_bad_file_is_named_and_nothing_of_it_is_shown(
    tls_dir: Path, auth_dir: Path, made: Path, name: str, content: bytes | str | None
) -> None:
    path = (auth_dir if name in ("username", "password") else tls_dir) / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes((made / "other" / name).read_bytes() if isinstance(content, str) else content)
    with pytest.raises(AccessError) as raised:
        read_access(tls_dir, auth_dir)
    assert str(path) in str(raised.value)
    assert not isinstance(content, bytes) or len(content) < 3 or content.decode("latin-1") not in str(raised.value)


@needs_openssl
async def test_a_bad_start_is_an_off_reason_and_a_bad_change_keeps_the_last_good_version(
    tls_dir: Path, auth_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = PoolThread(Metrics())
    files = PoolAccessFiles(tls_dir, auth_dir, pool)
    (auth_dir / "password").unlink()
    assert files.refresh()
    assert pool.off_reason == f"{auth_dir / 'password'}: cannot be read: No such file or directory"
    assert not files.refresh()
    (auth_dir / "password").write_text("se-cret")
    assert files.refresh()
    assert pool.off_reason == "no memcached nodes are configured"
    (tls_dir / "tls.crt").write_text("")
    assert not files.refresh()
    assert pool.off_reason == "no memcached nodes are configured"
    assert f"{tls_dir / 'tls.crt'}" in caplog.text
    assert "se-cret" not in caplog.text
    await pool.close()


async def test_without_folders_nothing_is_wanted_and_nothing_ever_changes() -> None:
    pool = PoolThread(Metrics())
    files = PoolAccessFiles(None, None, pool)
    assert files.refresh()
    await asyncio.sleep(0)
    assert not files.refresh()
    assert pool.off_reason == "no memcached nodes are configured"
