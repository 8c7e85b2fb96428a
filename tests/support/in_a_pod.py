"""What a container of a restricted pod finds around it, for real programs on this machine.

    with volume(65532) as folder: …                a folder as an emptyDir with fsGroup: root's, mode 2777, in memory
    mount(folder, {"pool": b"…"})                  a mounted Secret or ConfigMap; again: the next version, atomically
    Popen(in_a_pod(argv, writable=[folder]), env=POD_ENVIRONMENT)

The program runs as user 65532 without a name, a home or capabilities, and may write to `/tmp` and `writable` alone.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

USER = 65532
_CHECKOUT = Path(__file__).resolve().parent.parent.parent
POD_ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}

# $1: the user, $2: the checkout, $3: the number of folders that may be written, then these, then the command. A mount
# namespace of its own, so that nothing of this reaches the machine. Where the interpreter lies in a home that only its
# owner may enter, that home is opened, in there: it gets a new root folder with the same content. A checkout in /tmp is
# carried over into the empty one by a file descriptor.
_SCRIPT = """
set -eu
user=$1; checkout=$2; number=$3; shift 3
while [ "$number" -gt 0 ]; do mount --bind "$1" "$1"; shift; number=$((number - 1)); done
home=$(getent passwd 0 | cut -d: -f6)
if [ "$(stat -c %a "$home")" = 700 ]; then
  mount -t tmpfs -o mode=755 tmpfs /mnt
  mkdir /mnt/upper
  mount --rbind "$home" /mnt/upper
  mount -t tmpfs -o mode=755 tmpfs "$home"
  for entry in .pyenv .local .cache; do
    if [ -d "/mnt/upper/$entry" ]; then mkdir "$home/$entry"; mount --bind "/mnt/upper/$entry" "$home/$entry"; fi
  done
  umount -R /mnt
  mount -o remount,ro "$home"
fi
exec 9<"$checkout"
mount -t tmpfs -o mode=1777 tmpfs /tmp
case "$checkout" in /tmp/*)
  mkdir -p "$checkout"
  mount --no-canonicalize --bind /proc/self/fd/9 "$checkout"
esac
exec 9<&-
mount -o remount,bind,ro /dev/shm
mount -o remount,bind,ro /
cd /
exec setpriv --reuid "$user" --regid "$user" --groups "$user" --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""


def in_a_pod(argv: Sequence[str], writable: Sequence[Path]) -> list[str]:
    """Return the command that runs `argv` so; its process id is the program's."""
    flags = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "in-a-pod"]
    return [*flags, str(USER), str(_CHECKOUT), str(len(writable)), *map(str, writable), *argv]


@cache
def why_not() -> str:
    """Return why that cannot be done here; empty if it can."""
    if os.geteuid() != 0:
        return "only root can make the surroundings of a pod"
    tried = subprocess.run(in_a_pod(["true"], []), capture_output=True, text=True, check=False, timeout=60)
    return "" if tried.returncode == 0 else f"the surroundings of a pod cannot be made here: {tried.stderr.strip()}"


@pytest.fixture
def needs_a_pod() -> None:
    """Skip where it cannot be done."""
    if why_not():
        pytest.skip(why_not())


@contextlib.contextmanager
def volumes() -> Iterator[Path]:
    """Give a folder in memory that everybody may enter, for what a pod mounts; removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="pagoda-test-", dir="/dev/shm"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def empty_dir(path: Path) -> Path:
    """Make what Kubernetes makes of an emptyDir with fsGroup."""
    path.mkdir()
    os.chown(path, 0, USER)
    path.chmod(0o2777)
    return path


def mount(path: Path, content: Mapping[str, bytes], mode: int = 0o440) -> Path:
    """Show `content` as Kubernetes mounts it: each name a link into a folder that is replaced by renaming one link."""
    path.mkdir(exist_ok=True)
    version = Path(tempfile.mkdtemp(prefix="..2026_", dir=path))
    version.chmod(0o755)
    for name, value in content.items():
        (version / name).write_bytes(value)
        if os.geteuid() == 0:
            os.chown(version / name, 0, USER)
        (version / name).chmod(mode)
    former = (path / "..data").readlink() if (path / "..data").is_symlink() else None
    (path / "..data_tmp").symlink_to(version.name)
    (path / "..data_tmp").rename(path / "..data")
    for name in content:
        if not (path / name).is_symlink():
            (path / name).symlink_to(f"..data/{name}")
    if former is not None:
        shutil.rmtree(path / former)
    return path
