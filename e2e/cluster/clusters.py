"""Up and down: the whole life of a cluster with one index."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import binaries, network
from .control_plane import CONTROLLERS, ControlPlane
from .node import Node, mounts_below
from .place import INDICES_OF_TESTS, MOST_CLUSTERS, Place, place, states_folder
from .processes import Processes


class NodeRefusedError(Exception):
    """This machine can't have a node now; the text says why."""


class StillMountedError(Exception):
    """Below a cluster's folder something is mounted that its end did not unmount; the text says what."""


def up(where: Place, programs: Path | None = None, *, with_node: bool = False) -> Path:
    """Bring up a control plane at this place, or what is missing of it; return the folder of its programs.

    `programs` is the user's own folder of etcd, kube-apiserver and kubectl; controllers come only from ours.
    """
    ours = programs is None
    programs = programs or binaries.ensure()
    if with_node:
        _check_that_a_node_fits(where)
    ControlPlane(where, programs).up(with_controllers=ours)
    if with_node:
        Node(where, programs).up()
    return programs


def down(where: Place) -> None:
    """End everything that runs at this place, and remove what it wrote."""
    if not where.state.exists():
        return
    processes = Processes(where.state)
    Node(where, binaries.folder()).down()
    for names in (CONTROLLERS, ("kube-apiserver",), ("etcd",)):
        processes.stop(*names)
    if where.has_bridge:
        network.remove(where)
    left = mounts_below(where.state)
    if left:  # what is mounted may be somebody else's
        raise StillMountedError(
            f"nothing is removed below {where.state} while {left[0]} is a mount: unmount it and try again"
        )
    shutil.rmtree(where.state, ignore_errors=True)


@contextlib.contextmanager
def claimed() -> Iterator[Place]:
    """Give this process a place of its own, empty; what a process that died left there is cleared away first."""
    states_folder().mkdir(mode=0o700, exist_ok=True)
    for index in INDICES_OF_TESTS:
        with (states_folder() / f"{index}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            down(place(index))
            try:
                yield place(index)
            finally:
                down(place(index))
            return
    raise RuntimeError(f"all {len(INDICES_OF_TESTS)} places for clusters of tests are taken")


def _check_that_a_node_fits(where: Place) -> None:
    if not where.has_bridge:
        raise NodeRefusedError("a node needs root: its pods are attached to a network device of this machine")
    others = (place(index) for index in range(MOST_CLUSTERS) if index != where.index)
    taken = next((other.index for other in others if Processes(other.state).is_alive("kubelet")), None)
    if taken is not None:
        raise NodeRefusedError(
            f"a machine has room for one node, and cluster {taken} has it: wait for the test run that started it, "
            f"or end it with `.venv/bin/python -m e2e.cluster down --index {taken}`"
        )
