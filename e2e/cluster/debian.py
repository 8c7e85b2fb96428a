"""What the stories need of Debian's packages, installed by the same code as `make setup`'s."""

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

_SETUP = Path(__file__).resolve().parents[2] / ".ci" / "setup.py"
_FOLDERS = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/lib/cni"
# program → package
NODE_TOOLS = {
    "containerd": "containerd",
    "runc": "runc",
    "busybox": "busybox-static",
    "nft": "nftables",
    "conntrack": "conntrack",
    "bridge": "containernetworking-plugins",
    "ip": "iproute2",
}


class MissingToolsError(Exception):
    """Packages are missing that this user can't install; the text says how they are had."""


def install(tools: Mapping[str, str]) -> None:
    """Install the packages of those programs that are missing, with no service started."""
    missing = [package for program, package in tools.items() if shutil.which(program, path=_folders(program)) is None]
    if not missing:
        return
    setup = _setup()
    try:
        setup.install_debian_packages(missing)
    except setup.SetupError as error:
        raise MissingToolsError(str(error)) from error


def _folders(program: str) -> str:
    # iproute2 has a program of the same name as the CNI plugin.
    return "/usr/lib/cni" if program == "bridge" else _FOLDERS


def _setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pagoda_setup", _SETUP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
