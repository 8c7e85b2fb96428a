"""The tooling of the stories: whose cluster they run on, what `Cluster` offers, and that nothing is left behind."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.charts import prometheus_kinds
from e2e.cluster import binaries, chosen, clusters
from e2e.cluster.handle import Cluster, KubectlError
from e2e.cluster.place import MOST_CLUSTERS, Place, place
from e2e.cluster.processes import Processes
from e2e.crd import inference_extension

PREPARE_SECONDS = 240.0
UP_SECONDS = 100.0


def test_a_service_account_has_its_own_rights_and_no_others(control_plane: Cluster) -> None:
    with control_plane.namespace("cluster") as namespace:
        control_plane.kubectl("create", "serviceaccount", "reader", "-n", namespace)
        rights = ("--verb=get", "--resource=configmaps")
        control_plane.kubectl("create", "role", "reader", *rights, "-n", namespace)
        given = ("--role=reader", f"--serviceaccount={namespace}:reader")
        control_plane.kubectl("create", "rolebinding", "reader", *given, "-n", namespace)
        identity = control_plane.service_account_kubeconfig(namespace, "reader")
        made = ("--for=create", "configmap/kube-root-ca.crt", "--timeout=50s")  # by a controller
        control_plane.kubectl("wait", *made, "-n", namespace)
        with Cluster(identity, control_plane.programs) as reader:
            assert reader.kubectl_json("get", "configmap", "kube-root-ca.crt")["kind"] == "ConfigMap"
            with pytest.raises(KubectlError, match="secrets is forbidden"):
                reader.kubectl("get", "secrets")


def test_what_is_applied_is_there_until_its_namespace_goes(control_plane: Cluster) -> None:
    with control_plane.namespace("cluster") as namespace:
        name = f"metadata: {{name: told, namespace: {namespace}}}"
        control_plane.apply(f"apiVersion: v1\nkind: ConfigMap\n{name}\ndata: {{key: value}}\n")
        assert control_plane.kubectl_json("get", "configmap", "told", "-n", namespace)["data"] == {"key": "value"}
    control_plane.kubectl("wait", "--for=delete", f"namespace/{namespace}", "--timeout=50s")


def test_helm_speaks_to_the_same_cluster(control_plane: Cluster) -> None:
    assert "NAME" in control_plane.helm("list", "--all-namespaces")


def test_a_context_that_nobody_allowed_is_refused_and_one_that_is_named_is_not(
    control_plane: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", control_plane.environment()["PATH"])
    path = tmp_path / "config"
    path.write_text(control_plane.kubectl("config", "view", "--raw"), "utf-8")
    control_plane.kubectl("--kubeconfig", str(path), "config", "rename-context", "pagoda-e2e", "production")
    control_plane.kubectl("--kubeconfig", str(path), "config", "use-context", "production")
    asked = {"KUBECONFIG": str(path)}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    refused = pytest.raises(chosen.RefusedContextError, match=r"'production'.*PAGODA_E2E_CONTEXTS=production")
    with refused, chosen.api_server(asked):
        pass
    with chosen.api_server(asked | {"PAGODA_E2E_CONTEXTS": "other,production"}) as cluster:
        assert cluster.kubeconfig == path
        assert "default" in cluster.kubectl("get", "namespaces")
    assert list(tmp_path.iterdir()) == [path]


def test_a_users_own_etcd_and_api_server_are_enough_and_nothing_stays(control_plane: Cluster, tmp_path: Path) -> None:
    """Two control planes side by side: this one is of what `KUBEBUILDER_ASSETS` names, and has no controllers."""
    assert control_plane.programs is not None or os.environ.get("KUBECONFIG")
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in ("etcd", "kube-apiserver", "kubectl"):
        (assets / name).symlink_to(_program(control_plane, name).resolve())
    with chosen.api_server({"KUBEBUILDER_ASSETS": str(assets)}) as cluster:
        state = cluster.kubeconfig.parent
        assert not cluster.has_controllers
        assert Processes(state).names() == ["etcd", "kube-apiserver"]
        cluster.kubectl("create", "configmap", "some")
        assert cluster.kubectl_json("get", "configmap", "some")["metadata"]["name"] == "some"
        assert (cluster.scratch / "kube-cache").exists()
    assert not state.exists()
    assert not cluster.scratch.exists()


def test_the_files_of_a_handle_go_with_it_whatever_happened_and_never_what_it_was_given(tmp_path: Path) -> None:
    given = tmp_path / "kubeconfig"
    given.touch()
    cluster = Cluster(given)
    (cluster.scratch / "token").touch()
    with pytest.raises(RuntimeError, match="a story failed"), cluster:
        raise RuntimeError("a story failed")
    assert not cluster.scratch.exists()
    assert given.exists()


def test_prepare_fetches_all_that_stories_take_from_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "e2e.cluster", "prepare"], timeout=PREPARE_SECONDS, check=True)
    monkeypatch.setenv("GOPROXY", "off")
    assert (binaries.kwok_source() / "kustomize").is_dir()
    assert prometheus_kinds.prometheus_kinds().count("kind: CustomResourceDefinition") == 3
    assert inference_extension.crds_file().is_file()


@pytest.fixture
def own_place() -> Iterator[Place]:
    if os.environ.get("KUBECONFIG") or os.environ.get("KUBEBUILDER_ASSETS"):
        pytest.skip("whoever brings a cluster need not build the programs of ours")
    with clusters.claimed() as where:
        yield where


def test_a_person_brings_a_cluster_up_twice_with_one_line_uses_it_and_takes_it_down(
    own_place: Place, tmp_path: Path
) -> None:
    chosen_one = ("--index", str(own_place.index))
    line = _cluster_command("up", *chosen_one).stdout
    running = _programs_of(own_place)
    assert {program.name() for program in running} >= {
        "etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager",
    }  # fmt: skip
    used = subprocess.run(
        ["bash", "-c", f"{line.splitlines()[-1]}\nkubectl get namespaces && kubectl config current-context"],
        capture_output=True, text=True, timeout=50, check=True, env={"PATH": os.defpath, "HOME": str(tmp_path)},
    ).stdout  # fmt: skip
    assert "kube-system" in used
    assert used.endswith("pagoda-e2e\n")
    assert _cluster_command("up", *chosen_one).stdout == line
    assert _programs_of(own_place) == running, "the second time something was started anew"
    for _ in range(2):
        assert _cluster_command("down", *chosen_one).stdout == ""
        assert not own_place.state.exists()
    assert not any(map(_is_alive, running))


def test_a_cluster_of_no_number_is_refused() -> None:
    refused = _cluster_command("up", "--index", str(MOST_CLUSTERS), check=False)
    assert refused.returncode == 2
    assert f"argument --index: invalid choice: {MOST_CLUSTERS} (choose from" in refused.stderr


def _programs_of(where: Place) -> list[psutil.Process]:
    return [psutil.Process(int(record.read_text().split()[0])) for record in sorted((where.state / "pids").iterdir())]


def _is_alive(program: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return program.is_running() and program.status() != psutil.STATUS_ZOMBIE
    return False


def _cluster_command(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "e2e.cluster", *words], capture_output=True, text=True, timeout=UP_SECONDS, check=check
    )


def test_a_killed_run_is_cleared_away_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[int] = []
    monkeypatch.setattr(clusters, "down", lambda where: cleared.append(where.index))
    with clusters.claimed() as first, clusters.claimed() as second:
        assert first.index != second.index
        assert cleared == [first.index, second.index]
    assert cleared == [first.index, second.index, second.index, first.index]


def test_places_share_no_address_port_device_or_file() -> None:
    def unique(where: Place) -> set[str]:
        addresses = {where.loopback, where.address, where.pods, where.services, where.fake_pods}
        return addresses | {where.bridge, str(where.state)}

    places = [unique(place(index)) for index in range(12)]
    assert len(set().union(*places)) == sum(map(len, places))


def _program(cluster: Cluster, name: str) -> Path:
    folders = cluster.environment()["PATH"].split(os.pathsep)
    return next(Path(folder, name) for folder in folders if Path(folder, name).exists())


def test_played_nodes_have_ready_pods_that_this_machine_answers_for(control_plane: Cluster) -> None:
    with control_plane.namespace("played") as namespace, control_plane.fake_nodes(2) as nodes:
        tolerations = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]
        limits = {"nvidia.com/gpu": "5"}  # of a node's eight: two pods need two nodes
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        template = {"metadata": {"labels": {"app": "played"}}}
        template["spec"] = {"containers": [container], "tolerations": tolerations}
        spec = {"replicas": 2, "selector": {"matchLabels": {"app": "played"}}, "template": template}
        metadata = {"name": "played", "namespace": namespace}
        control_plane.apply(
            json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
        )
        control_plane.kubectl("rollout", "status", "deployment/played", "-n", namespace, "--timeout=50s")
        pods = control_plane.kubectl_json("get", "pods", "-n", namespace)["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} == set(nodes)
        assert all(pod["status"]["containerStatuses"][0]["containerID"].startswith("kwok://") for pod in pods)
        if os.geteuid() == 0:
            with socket.create_server(("0.0.0.0", 0)) as server:
                for pod in pods:
                    socket.create_connection((pod["status"]["podIP"], server.getsockname()[1]), timeout=5).close()
        control_plane.kubectl("delete", "deployment", "played", "-n", namespace)
        control_plane.kubectl("wait", "--for=delete", "pods", "--all", "-n", namespace, "--timeout=50s")
