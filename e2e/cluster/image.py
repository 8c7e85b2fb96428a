"""A folder as an OCI image archive, for a container runtime without registry, without Docker."""

import hashlib
import io
import json
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_TYPE = "application/vnd.oci.image"
_CHUNK = 1 << 20
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Image:
    """What an image says of itself beside its files."""

    # With the registry `localhost/` in front, which nobody tries to reach.
    name: str
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = (PATH,)
    user: str = ""


def pack(image: Image, root: Path, archive: IO[bytes]) -> None:
    """Write `root` as an image of one layer to `archive`, every file owned by root."""
    with tempfile.TemporaryFile() as layer, tarfile.open(fileobj=archive, mode="w|", bufsize=_CHUNK) as tar:
        with tarfile.open(fileobj=layer, mode="w|", bufsize=_CHUNK) as files:
            for entry in sorted(root.iterdir()):
                files.add(entry, arcname=entry.name, filter=_owned_by_root)
        size = layer.tell()
        layer.seek(0)
        digest = f"sha256:{hashlib.file_digest(layer, 'sha256').hexdigest()}"
        layer.seek(0)
        _add(tar, _place(digest), layer, size)
        description = _add_json(tar, f"{_TYPE}.config.v1+json", _config(image, digest))
        layers = [{"mediaType": f"{_TYPE}.layer.v1.tar", "digest": digest, "size": size}]
        manifest = _add_json(tar, f"{_TYPE}.manifest.v1+json", {**_schema(), "config": description, "layers": layers})
        named = manifest | {"annotations": {"io.containerd.image.name": image.name}}
        _add_bytes(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [named]}).encode())
        _add_bytes(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())


def _config(image: Image, digest: str) -> dict[str, Any]:
    started = {
        "Entrypoint": list(image.entrypoint),
        "Cmd": list(image.command),
        "Env": list(image.environment),
        "User": image.user,
    }
    files = {"type": "layers", "diff_ids": [digest]}
    return {"architecture": "amd64", "os": "linux", "config": started, "rootfs": files}


def _schema() -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": f"{_TYPE}.manifest.v1+json"}


def _place(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _add_json(tar: tarfile.TarFile, media_type: str, document: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(document).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    _add_bytes(tar, _place(digest), data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    _add(tar, name, io.BytesIO(data), len(data))


def _add(tar: tarfile.TarFile, name: str, source: IO[bytes], size: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    tar.addfile(entry, source)


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
