from dataclasses import replace
from typing import Any

import pytest

from pagoda_protocol.pool.spec import InferencePool, Rollout
from tests.operator.children.pools import POOLS, children_of, containers_of, templates_of

every_pool = pytest.mark.parametrize("name", POOLS)


def deployment_of(pool: InferencePool) -> dict[str, Any]:
    spec: dict[str, Any] = children_of(pool)["Deployment", f"{pool.name}-engine"]["spec"]
    return spec


@every_pool
def test_a_pods_grace_covers_drain_hand_over_flush_and_exit(name: str) -> None:
    pool = POOLS[name]
    spec = deployment_of(pool)
    grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace == pool.drain_seconds + 30 + 20 + 5
    assert spec["progressDeadlineSeconds"] == pool.engine.startup_seconds + grace + 60


@every_pool
def test_the_engine_starts_when_the_sidecar_is_ready_and_is_not_taken_out_of_service_by_it(name: str) -> None:
    spec = templates_of(POOLS[name])["engine"]["spec"]
    (sidecar,) = spec["initContainers"]
    assert sidecar["restartPolicy"] == "Always", "else it is no sidecar, and the engine would wait for its end"
    assert sidecar["startupProbe"]["httpGet"] == {"path": "/ready", "port": "sidecar"}
    assert "readinessProbe" not in sidecar
    assert "lifecycle" not in sidecar, "its preStop would run at the same moment as the engine's"


@every_pool
def test_an_engine_may_take_as_long_to_start_as_its_pool_says(name: str) -> None:
    pool = POOLS[name]
    engine = containers_of(templates_of(pool)["engine"])["engine"]
    probe = engine["startupProbe"]
    assert probe["httpGet"]["path"] == "/ready"
    assert (
        0 <= probe["periodSeconds"] * probe["failureThreshold"] - pool.engine.startup_seconds < probe["periodSeconds"]
    )


def test_readiness_asks_whether_it_can_answer_now_and_liveness_whether_its_loop_runs() -> None:
    for container, readiness in (("engine", "/ready"), ("router", "/ready")):
        probes = containers_of(templates_of(POOLS["least"])[container])[container]
        assert probes["readinessProbe"]["httpGet"]["path"] == readiness
        liveness = probes["livenessProbe"]
        assert liveness["httpGet"]["path"] == "/health"
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60, "a busy loop is no hung one"
        assert liveness["terminationGracePeriodSeconds"] <= 15, "a hung one does not drain"


@every_pool
def test_before_it_is_stopped_an_engine_drains_for_as_long_as_its_pool_says(name: str) -> None:
    pool = POOLS[name]
    engine = containers_of(templates_of(pool)["engine"])["engine"]
    command = engine["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:3] == ["python", "-m", "pagoda_engine.drain"]
    assert command[command.index("--seconds") + 1] == str(pool.drain_seconds)
    assert command[command.index("--port") + 1] == str(engine["ports"][0]["containerPort"])
    secret_dir = command[command.index("--secret-dir") + 1]
    assert secret_dir in {place["mountPath"] for place in engine["volumeMounts"]}, "it holds the key to the drain"


@pytest.mark.parametrize(
    ("rollout", "num_gpus", "replicas", "expected"),
    [
        (Rollout(None, None), 0, 3, (1, 0)),
        (Rollout(None, None), 1, 1, (1, 0)),
        (Rollout(None, None), 1, 2, (0, 1)),
        (Rollout(2, 0), 8, 4, (2, 0)),
        (Rollout(None, 0), 1, 4, (1, 0)),
        (Rollout(0, None), 0, 4, (0, 1)),
    ],
)
def test_a_rollout_needs_no_gpu_that_may_not_be_there(
    rollout: Rollout, num_gpus: int, replicas: int, expected: tuple[int, int]
) -> None:
    pool = POOLS["ram"]
    resources = replace(pool.engine.resources, num_gpus=num_gpus)
    pool = replace(pool, replicas=replicas, engine=replace(pool.engine, rollout=rollout, resources=resources))
    strategy = deployment_of(pool)["strategy"]
    assert strategy["type"] == "RollingUpdate"
    assert (strategy["rollingUpdate"]["maxSurge"], strategy["rollingUpdate"]["maxUnavailable"]) == expected


def test_gpus_stand_in_limits_alone() -> None:
    resources = containers_of(templates_of(POOLS["gpus"])["engine"])["engine"]["resources"]
    assert resources["limits"]["nvidia.com/gpu"] == "2"
    assert "nvidia.com/gpu" not in resources["requests"]


def test_without_a_word_about_cpu_an_engine_asks_for_a_core_and_may_use_more() -> None:
    resources = containers_of(templates_of(POOLS["least"])["engine"])["engine"]["resources"]
    assert resources["requests"]["cpu"] == "1"
    assert "cpu" not in resources["limits"]


def test_a_pools_own_image_is_its_engines_alone() -> None:
    containers = containers_of(templates_of(POOLS["gpus"])["engine"])
    assert containers["engine"]["image"] == "example.com/other@sha256:" + "0" * 64
    assert containers["sidecar"]["image"] == "example.com/sidecar:1"


def test_pods_lie_apart_unless_the_pool_says_how() -> None:
    for part, template in templates_of(POOLS["all-tiers"]).items():
        spread = template["spec"]["topologySpreadConstraints"]
        assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        for one in spread:
            assert one["whenUnsatisfiable"] == "ScheduleAnyway", "a small cluster runs them all the same"
            assert one["labelSelector"]["matchLabels"]["pagoda-kv.io/part"] == part


@every_pool
def test_the_volume_in_memory_holds_the_arena_and_sixteen_mebibytes_more(name: str) -> None:
    pool = POOLS[name]
    template = templates_of(pool)["engine"]
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "pagoda-kv"]
    sidecar = containers_of(template)["sidecar"]["args"]
    ram = int(sidecar[sidecar.index("--ram-bytes") + 1])
    from pagoda_protocol.pool.quantities import MEBI, parse_bytes

    assert volume["emptyDir"]["medium"] == "Memory"
    assert parse_bytes(volume["emptyDir"]["sizeLimit"]) == ram + 16 * MEBI
    for container in containers_of(template).values():
        assert {"name": "pagoda-kv", "mountPath": "/run/pagoda/kv"} in container["volumeMounts"]
