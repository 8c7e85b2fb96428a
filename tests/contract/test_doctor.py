"""What the doctor knows of others: the operator's names and rights, the CRD, the page that explains its codes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import doctor as made
from pagoda_cli.doctor import names
from pagoda_cli.doctor.secrets import needed_secrets
from pagoda_operator import names as operator_names
from pagoda_operator.children import Owner, render_secrets
from pagoda_operator.reconcile import SECRETS_SECONDS, UNREADY_SECRETS_SECONDS
from pagoda_protocol.pool.spec import parse_pool
from tests.cli.doctor.healthy import UID, children, pool

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_explains_exactly_the_codes_there_are() -> None:
    assert made.PAGE.read_text("utf-8") == made.render(), "docs/doctor.md is stale: run `make generate`"


def test_the_doctor_knows_the_definition_that_is_shipped() -> None:
    assert made.SCHEMA.read_text("utf-8") == made.schema(), "the doctor's schema.json is stale: run `make generate`"


@pytest.mark.parametrize(
    "name",
    ["GROUP", "VERSION", "PLURAL", "POOL_LABEL", "PART_LABEL", "ENGINE", "ROUTER", "MEMCACHED", "ENGINE_PORT",
     "SIDECAR_PORT", "MEMCACHED_PORT"],
)  # fmt: skip
def test_the_doctor_calls_things_as_the_operator_does(name: str) -> None:
    assert getattr(names, name) == getattr(operator_names, name)


def test_children_have_the_names_that_the_doctor_looks_for() -> None:
    workloads = {
        child["metadata"]["name"] for child in children(pool()) if child["kind"] in ("Deployment", "StatefulSet")
    }
    assert workloads == {names.child("chat", part) for part in (names.ENGINE, names.ROUTER, names.MEMCACHED)}


def test_the_doctor_looks_for_the_secrets_that_the_operator_makes_and_for_all_their_keys() -> None:
    owner = Owner("shop", "chat", UID, 1)
    secrets = render_secrets(parse_pool(pool()), owner, lambda count: b"\0" * count)
    made_keys = {secret["metadata"]["name"]: set(secret["data"]) for secret in secrets}
    assert {need.name: set(need.keys) for need in needed_secrets(pool())} == made_keys


def test_engine_pods_carry_the_flags_that_are_compared() -> None:
    (engine,) = (
        child for child in children(pool())
        if (child["kind"], child["metadata"]["name"]) == ("Deployment", "chat-engine")
    )  # fmt: skip
    (container,) = (each for each in engine["spec"]["template"]["spec"]["containers"] if each["name"] == names.ENGINE)
    words = [*container.get("command", []), *container.get("args", [])]
    assert {"--codec", "--block-tokens"} <= {word.partition("=")[0] for word in words}


def test_the_doctor_asks_for_the_rights_that_the_chart_grants() -> None:
    text = (ROOT / "charts" / "pagoda" / "templates" / "_rules.tpl").read_text("utf-8")
    match = re.search(r'define "pagoda.rules" -\}\}\n(.*?)\{\{- end', text, re.DOTALL)
    assert match is not None
    granted: set[tuple[str, str, str]] = set()
    rules: dict[str, Any] = yaml.safe_load(match.group(1))
    for rule in (rule for concern in rules.values() for rule in concern):
        granted |= {(g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
    wanted = {(group, kind, verb) for group, kind, verbs in names.OPERATOR_RIGHTS for verb in verbs}
    assert wanted == granted


def test_the_chart_labels_its_operator_as_the_doctor_looks_for_it() -> None:
    templates = ROOT / "charts" / "pagoda" / "templates"
    operator, helpers = (templates / "operator.yaml").read_text(), (templates / "_names.tpl").read_text()
    assert "app.kubernetes.io/component: operator" in operator
    assert "app.kubernetes.io/part-of: pagoda" in helpers
    for flag in ("--lease-namespace=", "--lease-name=", "--namespace="):
        assert flag in operator


def test_the_page_says_when_a_secret_comes_back_as_it_is() -> None:
    assert (SECRETS_SECONDS, UNREADY_SECRETS_SECONDS) == (1800, 120)
    assert "within half an hour, in two minutes while the pool is not ready" in made.render()
