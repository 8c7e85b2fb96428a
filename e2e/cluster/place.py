"""Where a cluster's parts listen and where its files lie. Pure: it opens nothing.

Clusters stand side by side on one machine, each with an index. Ports are the usual ones everywhere; the index moves
addresses instead. What pods and other machines' habits never need to see listens on a loopback address (all of
127.0.0.0/8 is this machine), what pods must reach on the bridge's address, since neither a node's address nor an
endpoint may be a loopback one. Without root there is no bridge, and a control plane is content with loopback.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

# `make cluster` has the first, test runs share out the next ones among themselves, the rest is for who asks by number.
SHARED_INDEX = 0
INDICES_OF_TESTS = range(1, 8)
MOST_CLUSTERS = 12
NODE_NAME = "node1"


@dataclass(frozen=True)
class Place:
    """The addresses, names and files of the cluster with this index."""

    index: int
    # False: loopback alone, as for a user without root.
    has_bridge: bool

    @property
    def state(self) -> Path:
        """The folder of everything the cluster writes."""
        return states_folder() / str(self.index)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way in."""
        return self.state / "admin.kubeconfig"

    @property
    def loopback(self) -> str:
        """Where etcd, controllers and health answers listen."""
        return f"127.77.{self.index}.1"

    @property
    def bridge(self) -> str:
        """The network device that pods are attached to; also the name of their network."""
        return f"pagoda{self.index}"

    @property
    def address(self) -> str:
        """The address of the API server; with a bridge also the node's, the name server's and the pods' gateway."""
        return f"10.244.{16 + self.index}.1" if self.has_bridge else self.loopback

    @property
    def pods(self) -> str:
        """The addresses of pods."""
        return f"10.244.{16 + self.index}.0/24"

    @property
    def services(self) -> str:
        """The addresses of Services."""
        return f"10.{97 + self.index}.0.0/16"

    @property
    def api_service(self) -> str:
        """The address of the Service `kubernetes`, the first one."""
        return f"10.{97 + self.index}.0.1"

    @property
    def fake_pods(self) -> str:
        """The addresses of pods on fake nodes."""
        return f"10.{200 + self.index}.0.0/16"


def states_folder() -> Path:
    """Return the folder of this user's clusters: temporary, since a cluster's state is thrown away with it."""
    return Path(tempfile.gettempdir()) / f"pagoda-clusters-{os.geteuid()}"


def place(index: int) -> Place:
    """Return the place with `index`, as this user may have it."""
    if not 0 <= index < MOST_CLUSTERS:
        raise ValueError(f"index {index}: clusters are numbered 0 to {MOST_CLUSTERS - 1}")
    return Place(index, has_bridge=os.geteuid() == 0)
