"""A plan is a function of the pool and the place: the golden file holds every command line and every settings file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pagoda_cli.plan import Kind, Place, Plan, PodPorts, make_plan
from tests.cli.manifests import pool

GOLDEN = Path(__file__).parent / "golden" / "plan.json"

PLACE = Place(
    host="127.0.0.1",
    router_port=8000,
    pod_ports=[PodPorts(4000, 4001), PodPorts(4002, 4003)],
    node_ports=[4004],
    volumes="/dev/shm/pagoda-0123",
    secret_dir="/state/secrets/chat-pool-secret",
    router_secret_dir="/state/run/router-secret",
    settings_dir="/state/run/settings",
    tenants_dir=None,
    pool_tls_dir=None,
    pool_auth_dir=None,
    disks="/state/disk",
    num_cores=4,
    memcached="/usr/bin/memcached",
    python="/venv/bin/python",
    exact=False,
)


def as_json(plan: Plan) -> dict[str, Any]:
    return {
        "parts": [
            {
                "title": part.title,
                "argv": list(part.command.argv),
                "environment": dict(part.command.environment),
                "port": part.port,
                "ready_path": part.ready_path,
                "startup_seconds": part.startup_seconds,
                "stop_seconds": part.stop_seconds,
            }
            for part in plan.parts
        ],
        "settings": plan.settings,
        "volumes": list(plan.volumes),
        "disks": list(plan.disks),
    }


def test_the_plan_of_two_pods_is_the_golden_one() -> None:
    assert as_json(make_plan(pool(), PLACE)) == json.loads(GOLDEN.read_text("utf-8"))


def test_every_pod_is_an_engine_and_a_sidecar_that_share_one_volume() -> None:
    plan = make_plan(pool(), PLACE)
    for index, volume in enumerate(plan.volumes):
        pair = [part for part in plan.parts if part.name == f"chat-{index}"]
        assert {part.kind for part in pair} == {Kind.ENGINE, Kind.SIDECAR}
        for part in pair:
            assert part.command.argv[part.command.argv.index("--volume") + 1] == volume


def test_an_external_pool_is_reached_and_not_started() -> None:
    external = {"external": {"addresses": ["mc-0:11211", "mc-1:11211"]}}
    plan = make_plan(
        pool(spec__cache__pool=external, spec__cache__secretRef={"name": "shared"}), replace(PLACE, node_ports=[])
    )
    assert plan.settings["pool-nodes.json"] == {
        "nodes": [
            {"name": "mc-0:11211", "address": "mc-0:11211"},
            {"name": "mc-1:11211", "address": "mc-1:11211"},
        ]
    }
    assert all(part.kind is not Kind.MEMCACHED for part in plan.parts)


def test_without_memcached_the_sidecars_know_no_node() -> None:
    plan = make_plan(pool(), replace(PLACE, node_ports=[]))
    assert plan.settings["pool-nodes.json"] == {"nodes": []}


def test_the_router_never_learns_where_the_pool_secret_is() -> None:
    [router] = [part for part in make_plan(pool(), PLACE).parts if part.kind is Kind.ROUTER]
    assert PLACE.secret_dir not in router.command.argv
    assert PLACE.router_secret_dir in router.command.argv


def test_exact_mode_and_api_keys_reach_the_programs_that_need_them() -> None:
    tenants = {"name": "tenants"}
    place = replace(PLACE, exact=True, tenants_dir="/state/secrets/tenants")
    plan = make_plan(pool(spec__tenancy__apiKeysSecretRef=tenants), place)
    for part in plan.parts:
        assert ("--exact" in part.command.argv) == (part.kind is Kind.ENGINE)
        assert ("--tenants-dir" in part.command.argv) == (part.kind is not Kind.MEMCACHED)


def test_every_field_that_a_program_has_a_flag_for_changes_a_command_line() -> None:
    before = as_json(make_plan(pool(), PLACE))
    for path, value in (
        ("spec__model__name", "other"),
        ("spec__model__source", {"local": {"path": "/models/x"}}),
        ("spec__engine__kvCache__memory", "65Mi"),
        ("spec__engine__kvCache__blockTokens", 32),
        ("spec__engine__kvCache__dtype", "Float32"),
        ("spec__engine__limits__maxModelTokens", 512),
        ("spec__engine__limits__maxBatchTokens", 512),
        ("spec__engine__limits__maxSequences", 3),
        ("spec__engine__startupSeconds", 7),
        ("spec__cache__ram__size", "32Mi"),
        ("spec__cache__pool__managed__memoryPerReplica", "128Mi"),
        ("spec__routing__policy", "RoundRobin"),
        ("spec__drainSeconds", 3),
    ):
        assert as_json(make_plan(pool(**{path: value}), PLACE)) != before, path
