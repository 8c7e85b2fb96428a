"""A control plane on this machine: etcd, API server, controllers, scheduler."""

import subprocess
from pathlib import Path

from .certificates import Certificates
from .network import make_bridge
from .place import Place
from .processes import Processes, wait_for

ETCD_PORT = 2379
ETCD_PEERS_PORT = 2380
API_PORT = 6443
READY_SECONDS = 90.0
COMMAND_SECONDS = 20.0
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")


class ControlPlane:
    """Brings up what is not running yet; may be asked again at any time."""

    def __init__(self, place: Place, programs: Path) -> None:
        self._place = place
        self._programs = programs
        self._certificates = Certificates(place)
        self._processes = Processes(place.state)

    def up(self, *, with_controllers: bool = True) -> None:
        """Bring it up and wait until it can be used. Without controllers it is an API server alone."""
        self._place.state.mkdir(parents=True, exist_ok=True)
        self._certificates.make()
        for client in ("admin", "controller-manager", "scheduler"):
            self._certificates.write_kubeconfig(client, kubeconfig(self._place, client))
        if self._place.has_bridge:
            make_bridge(self._place)
        self._processes.start("etcd", self._programs / "etcd", *self._etcd())
        self._processes.start("kube-apiserver", self._programs / "kube-apiserver", *self._api_server())
        self._wait("the API server", "get", "--raw", "/readyz")
        if not with_controllers:
            return
        # Only now: on a slow machine they would give up waiting for the API server, for good.
        for name, flags in zip(CONTROLLERS, (self._controller_manager(), self._scheduler()), strict=True):
            self._processes.start(name, self._programs / name, *flags)
        # A controller's work: from here on namespaces can be used.
        self._wait("the first service account", "get", "serviceaccount", "default", "-n", "default")

    def _etcd(self) -> list[str]:
        clients, peers = (f"http://{self._place.loopback}:{port}" for port in (ETCD_PORT, ETCD_PEERS_PORT))
        return [
            *("--data-dir", str(self._place.state / "etcd")),
            *("--listen-client-urls", clients, "--advertise-client-urls", clients),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
            *("--log-level", "warn"),
            "--unsafe-no-fsync",  # nobody wants this state after a crash of the machine
        ]

    def _api_server(self) -> list[str]:
        crt, key = self._certificates.certificate, self._certificates.key
        return [
            *("--etcd-servers", f"http://{self._place.loopback}:{ETCD_PORT}"),
            *("--bind-address", self._place.address, "--advertise-address", self._place.address),
            *("--secure-port", str(API_PORT)),
            *("--tls-cert-file", str(crt("apiserver")), "--tls-private-key-file", str(key("apiserver"))),
            *("--client-ca-file", str(crt("ca"))),
            *("--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction"),
            *("--service-cluster-ip-range", self._place.services),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", str(key("service-accounts"))),
            *("--service-account-signing-key-file", str(key("service-accounts"))),
            # No endpoint may be a loopback address: then the Service `kubernetes` has none; only pods would miss it.
            *(() if self._place.has_bridge else ("--endpoint-reconciler-type", "none")),
            # Node names resolve nowhere, so exec and logs must go by address.
            *("--kubelet-preferred-address-types", "InternalIP"),
            *("--kubelet-certificate-authority", str(crt("ca"))),
            *("--kubelet-client-certificate", str(crt("apiserver-to-kubelet"))),
            *("--kubelet-client-key", str(key("apiserver-to-kubelet"))),
            # Extension API servers (custom metrics, say) that run as plain processes of this machine.
            "--enable-aggregator-routing",
            *("--requestheader-client-ca-file", str(crt("front-proxy-ca"))),
            *("--requestheader-allowed-names", "front-proxy"),
            *("--requestheader-username-headers", "X-Remote-User"),
            *("--requestheader-group-headers", "X-Remote-Group"),
            *("--requestheader-extra-headers-prefix", "X-Remote-Extra-"),
            *("--proxy-client-cert-file", str(crt("front-proxy"))),
            *("--proxy-client-key-file", str(key("front-proxy"))),
            "--allow-privileged",
            "--profiling=false",
        ]

    def _controller_manager(self) -> list[str]:
        return [
            *("--kubeconfig", str(kubeconfig(self._place, "controller-manager"))),
            *("--bind-address", self._place.loopback, "--leader-elect=false"),
            "--use-service-account-credentials",
            *("--service-account-private-key-file", str(self._certificates.key("service-accounts"))),
            *("--root-ca-file", str(self._certificates.certificate("ca"))),
            *("--cluster-signing-cert-file", str(self._certificates.certificate("ca"))),
            *("--cluster-signing-key-file", str(self._certificates.key("ca"))),
            # Three times as often as by default: stories wait for it.
            *("--horizontal-pod-autoscaler-sync-period", "5s"),
        ]

    def _scheduler(self) -> list[str]:
        return [
            *("--kubeconfig", str(kubeconfig(self._place, "scheduler"))),
            *("--bind-address", self._place.loopback, "--leader-elect=false"),
        ]

    def _wait(self, what: str, *question: str) -> None:
        wait_for(lambda: self._answers(*question), what, READY_SECONDS, self._what_it_said)

    def _answers(self, *arguments: str) -> bool:
        command = [str(self._programs / "kubectl"), "--kubeconfig", str(self._place.kubeconfig), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMMAND_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _what_it_said(self) -> str:
        return "\n".join(f"{name}: {self._processes.tail(name)}" for name in self._processes.names())


def kubeconfig(place: Place, client: str) -> Path:
    """Return the kubeconfig of a part of the cluster, or of `admin`."""
    return place.state / f"{client}.kubeconfig"
