"""The network of a cluster on this machine: one bridge, one route, a few settings of the kernel; all undone again.

Only the kernel's own tools are called; no rule of iptables is made anywhere, and pods reach nothing but this machine.
"""

import contextlib
import ipaddress
import json
import re
import subprocess
from pathlib import Path

from .place import Place

SECONDS = 20.0
_NOTES = Path("/var/lib/cni/results")
# The cluster sets the first two, the kubelet the others by itself.
_SETTINGS = (
    "net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables", "vm/overcommit_memory", "kernel/panic",
    "kernel/panic_on_oops",
)  # fmt: skip


def make_bridge(place: Place) -> None:
    """Make the network device that has the cluster's address."""
    width = ipaddress.ip_network(place.pods).prefixlen
    if not Path("/sys/class/net", place.bridge).exists():
        _run("ip", "link", "add", place.bridge, "type", "bridge")
    _run("ip", "address", "replace", f"{place.address}/{width}", "dev", place.bridge)
    _run("ip", "link", "set", place.bridge, "up")


def prepare_node(place: Place) -> Path:
    """Let packets of pods through, and return the folder that tells the runtime how to attach pods."""
    _save_settings(place)
    for name in _SETTINGS[:2]:
        with contextlib.suppress(FileNotFoundError):
            Path("/proc/sys", name).write_text("1")
    # This machine's own packets for a Service: with an address that pods can answer, and never out of another device.
    _run("ip", "route", "replace", place.services, "dev", place.bridge, "src", place.address)
    folder = place.state / "cni"
    folder.mkdir(exist_ok=True)
    addresses = {
        "type": "host-local",
        "dataDir": str(place.state / "ipam"),
        "routes": [{"dst": "0.0.0.0/0"}],
        "ranges": [[{"subnet": place.pods, "gateway": place.address}]],
    }
    # hairpinMode: a pod reaches itself through its Service.
    plugin = {"type": "bridge", "bridge": place.bridge, "isGateway": True, "hairpinMode": True, "ipam": addresses}
    network = {"cniVersion": "0.4.0", "name": place.bridge, "plugins": [plugin]}
    (folder / "10-bridge.conflist").write_text(json.dumps(network), "utf-8")
    return folder


def remove(place: Place) -> None:
    """Undo everything: pods' namespaces, kube-proxy's tables, route and bridge, the settings."""
    for note in _NOTES.glob(f"{place.bridge}-*-eth0"):
        _remove_namespace(place, note)
    saved = _saved_settings(place)
    if saved.exists():  # a node was here
        for family in ("ip", "ip6"):
            _try("nft", "delete", "table", family, "kube-proxy")
        for name, value in json.loads(saved.read_text("utf-8")).items():
            Path("/proc/sys", name).write_text(value)
    _try("ip", "link", "delete", place.bridge)


def _remove_namespace(place: Place, note: Path) -> None:
    """Remove the network namespace of a pod, of which the CNI plugins keep this note."""
    found = re.search(r"cni-[0-9a-f-]{36}", note.read_text("utf-8"))
    if found is not None:
        _try("ip", "netns", "delete", found[0])
    container = note.name.removeprefix(f"{place.bridge}-").removesuffix("-eth0")
    for path in (note, _NOTES / f"cni-loopback-{container}-lo"):
        path.unlink(missing_ok=True)


def _saved_settings(place: Place) -> Path:
    return place.state / "settings.json"


def _save_settings(place: Place) -> None:
    saved = _saved_settings(place)
    if saved.exists():
        return
    settings = {}
    for name in _SETTINGS:
        with contextlib.suppress(FileNotFoundError):
            settings[name] = Path("/proc/sys", name).read_text().strip()
    saved.write_text(json.dumps(settings), "utf-8")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)


def _try(*command: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(command, check=False, capture_output=True, timeout=SECONDS)
