"""A node on this machine, so that pods run: container runtime, kubelet, proxy for Services, name server."""

import shutil
import subprocess
from pathlib import Path

import yaml

from . import debian
from .certificates import Certificates
from .control_plane import kubeconfig
from .image import Image, pack
from .network import prepare_node
from .place import NODE_NAME, Place
from .processes import Processes, wait_for

SOCKET_SECONDS = 30.0
READY_SECONDS = 90.0
COMMAND_SECONDS = 60.0
IMPORT_SECONDS = 300.0
PAUSE_IMAGE = "localhost/pause:1"
PROGRAMS = ("kubelet", "kube-proxy", "coredns", "containerd")
# Where containerd keeps what belongs to Kubernetes.
_NAMESPACE = "k8s.io"


class Node:
    """The one node of a cluster.

    A machine has room for one: kube-proxy's tables and kubelet's cgroups have the same names everywhere.
    """

    def __init__(self, place: Place, programs: Path) -> None:
        self._place = place
        self._programs = programs
        self._processes = Processes(place.state)
        self._certificates = Certificates(place)

    def up(self) -> None:
        """Bring up what is not running of it, and wait until it takes pods."""
        debian.install(debian.NODE_TOOLS)
        networks = prepare_node(self._place)
        self._start_containerd(networks)
        self._import_pause()
        self._start_kubelet()
        self._start_proxy()
        self._start_name_server()
        kubectl = (self._programs / "kubectl", "--kubeconfig", self._place.kubeconfig)
        ready = (*kubectl, "wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=1s")
        wait_for(lambda: _succeeds(*ready), f"node {NODE_NAME}", READY_SECONDS, lambda: self._processes.tail("kubelet"))

    def import_image(self, image: Image, root: Path) -> None:
        """Make `root` an image of the node; pods name it with `imagePullPolicy: Never` or `IfNotPresent`."""
        with subprocess.Popen([*self._ctr(), "images", "import", "-"], stdin=subprocess.PIPE) as importing:
            assert importing.stdin is not None
            pack(image, root, importing.stdin)
            importing.stdin.close()
            if importing.wait(IMPORT_SECONDS) != 0:
                raise RuntimeError(f"containerd refused the image {image.name}")

    def process_id(self, container_id: str) -> int:
        """Return the first process of a running container, named as in a pod's status."""
        tasks = dict(line.split()[:2] for line in _output(*self._ctr(), "tasks", "ls").splitlines())
        return int(tasks[container_id.removeprefix("containerd://")])

    def down(self) -> None:
        """End the node's programs and all its pods, and leave no mount and no cgroup behind."""
        if not self._configuration.exists():
            return  # no node was here, and cgroups of these names may be another cluster's
        self._processes.stop("kubelet", "kube-proxy", "coredns")
        if self._processes.is_alive("containerd"):
            for kind, remove in (("tasks", ("rm", "-f")), ("containers", ("rm",))):
                for name in _lines(*self._ctr(), kind, "ls", "-q"):
                    _succeeds(*self._ctr(), kind, *remove, name)
        self._processes.stop("containerd")
        for point in reversed(mounts_below(self._place.state)):
            _succeeds("umount", "-l", point)
        for folder in _left_cgroups():
            if not any(child.is_dir() for child in folder.iterdir()):
                _remove_cgroup(folder)

    def _start_containerd(self, networks: Path) -> None:
        configuration = self._place.state / "containerd.toml"
        configuration.write_text(
            f"""version = 2
root = "{self._place.state}/containerd"
state = "{self._place.state}/run/containerd"
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A machine may forbid to lower a process's oom score, and then no pod would start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
""",
            "utf-8",
        )
        self._processes.start("containerd", "containerd", "--config", configuration)
        version = (*self._ctr(), "version")
        wait_for(lambda: _succeeds(*version), "containerd", SOCKET_SECONDS, lambda: self._processes.tail("containerd"))

    def _import_pause(self) -> None:
        """Give the runtime the image that holds a pod's namespaces: a busybox that sleeps."""
        if PAUSE_IMAGE in _lines(*self._ctr(), "images", "ls", "-q"):
            return
        root = self._place.state / "pause"
        (root / "bin").mkdir(parents=True, exist_ok=True)
        busybox = shutil.which("busybox")
        assert busybox is not None, "debian.install gives busybox"
        shutil.copy(busybox, root / "bin" / "busybox")
        self.import_image(Image(PAUSE_IMAGE, ("/bin/busybox", "sleep"), ("2147483647",)), root)

    def _start_kubelet(self) -> None:
        pki = self._certificates
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._place.address,
            "healthzBindAddress": self._place.loopback,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki.certificate("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki.certificate("kubelet")),
            "tlsPrivateKeyFile": str(pki.key("kubelet")),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            # Since 1.35 the kubelet refuses cgroup v1 unless told otherwise; many machines still have it.
            "failCgroupV1": False,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "clusterDNS": [self._place.address],
            "clusterDomain": "cluster.local",
            "podLogsDir": str(self._place.state / "pod-logs"),
            # Images come from nowhere again, so none may be cleaned away.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%"},
        }
        self._configuration.write_text(yaml.safe_dump(configuration), "utf-8")
        self._processes.start(
            "kubelet", self._programs / "kubelet", "--config", self._configuration,
            "--kubeconfig", self._kubeconfig("kubelet"), "--root-dir", self._place.state / "kubelet",
            "--hostname-override", NODE_NAME, "--node-ip", self._place.address,
        )  # fmt: skip

    def _start_proxy(self) -> None:
        # By flags alone: with a file it ends whenever the file is written, even to the same text.
        unlimited = ("max-per-core", "min", "tcp-timeout-established", "tcp-timeout-close-wait")
        self._processes.start(
            "kube-proxy", self._programs / "kube-proxy", "--kubeconfig", self._kubeconfig("proxy"),
            "--hostname-override", NODE_NAME, "--proxy-mode", "nftables", "--cluster-cidr", self._place.pods,
            "--bind-address", self._place.address, "--nodeport-addresses", f"{self._place.address}/32",
            "--healthz-bind-address", f"{self._place.loopback}:10256",
            "--metrics-bind-address", f"{self._place.loopback}:10249", "--oom-score-adj", "0",
            *(f"--conntrack-{limit}=0" for limit in unlimited),  # the machine's own limits stay
        )  # fmt: skip

    def _start_name_server(self) -> None:
        path = self._place.state / "Corefile"
        lines = (
            f"bind {self._place.address}",
            "errors",
            f"kubernetes cluster.local {{\n kubeconfig {self._place.kubeconfig}\n}}",
        )
        path.write_text("\n".join((". {", *lines, "}", "")), "utf-8")
        self._processes.start("coredns", self._programs / "coredns", "-conf", path)

    @property
    def _configuration(self) -> Path:
        return self._place.state / "kubelet.yaml"

    @property
    def _socket(self) -> Path:
        return self._place.state / "run" / "containerd.sock"

    def _ctr(self) -> tuple[str, ...]:
        return ("ctr", "--address", str(self._socket), "--namespace", _NAMESPACE)

    def _kubeconfig(self, client: str) -> Path:
        path = kubeconfig(self._place, client)
        self._certificates.write_kubeconfig(client, path)
        return path


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points below `folder`, in the order in which they were made."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text("utf-8").splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def _left_cgroups() -> list[Path]:
    """Return the cgroups of pods, children first; with version 1 in the tree of every controller."""
    groups = Path("/sys/fs/cgroup")
    tops = [path for name in ("kubepods", _NAMESPACE) for path in (groups / name, *groups.glob(f"*/{name}"))]
    found = [folder for top in tops if top.is_dir() for folder in (top, *(p for p in top.rglob("*") if p.is_dir()))]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _remove_cgroup(folder: Path) -> None:
    """Remove a cgroup that has neither processes nor children; the kernel refuses any other."""
    try:
        folder.rmdir()
    except OSError:
        return


def _succeeds(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _lines(*command: str) -> list[str]:
    return _output(*command).split()


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    return done.stdout
