"""A real API server refuses what the parser refuses, and names the field: one table holds both (`bad_manifests.yaml`).

An entry of the table may say `server`: the field that the API server names where it is another than the parser's, or
`accepts` where the API server cannot refuse.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

import tests.protocol.pool
from e2e.cluster.handle import Cluster, KubectlError
from e2e.crd.pools import Pools, RefusedError
from pagoda_protocol.pool.spec import parse_pool
from tests.protocol.pool.manifests import changed, minimal, without

TABLE = Path(tests.protocol.pool.__file__).with_name("bad_manifests.yaml")
BAD = yaml.safe_load(TABLE.read_text("utf-8"))
REFUSED = [case for case in BAD if case.get("server") != "accepts"]
ACCEPTED = [case for case in BAD if case.get("server") == "accepts"]


def manifest_of(case: dict[str, Any]) -> dict[str, Any]:
    return without(case["remove"]) if "remove" in case else changed(case["set"], case["to"])


def name_of(case: dict[str, Any]) -> str:
    return str(case["error"]).partition(";")[0]


@pytest.mark.parametrize("case", REFUSED, ids=name_of)
def test_a_bad_manifest_is_refused_with_a_message_that_names_the_field(pools: Pools, case: dict[str, Any]) -> None:
    field = case.get("server") or case["error"].partition(": ")[0].replace('"', "")
    with pytest.raises(RefusedError) as refused:
        pools.try_to_create(manifest_of(case))
    assert refused.value.code in (400, 422)
    assert field in str(refused.value).replace('\\"', "")


def test_the_table_has_at_least_sixty_manifests_that_the_api_server_refuses() -> None:
    assert len(REFUSED) >= 60


@pytest.mark.parametrize("case", ACCEPTED, ids=name_of)
def test_what_the_api_server_mends_is_right_for_the_parser_afterwards(pools: Pools, case: dict[str, Any]) -> None:
    assert parse_pool(pools.try_to_create(manifest_of(case))) == parse_pool(minimal())


@pytest.mark.parametrize("command", [["create"], ["apply"], ["apply", "--server-side"], ["apply", "--validate=strict"]])
def test_kubectl_refuses_an_unknown_field_without_being_asked_to(
    knowing: Cluster, pools: Pools, command: list[str]
) -> None:
    text = yaml.safe_dump(changed("spec engine kvcache", {"memory": "1Gi"}))
    with pytest.raises(KubectlError, match=r"spec\.engine\.kvcache"):
        knowing.kubectl(*command, "--namespace", pools.namespace, "--dry-run=server", "-f", "-", input=text)


def test_a_client_that_does_not_ask_for_strictness_loses_the_unknown_field(pools: Pools) -> None:
    stored = pools.create_loosely(changed("spec engine kvcache", {"memory": "9Gi"}, minimal("loose")))
    assert "kvcache" not in stored["spec"]["engine"]
    assert stored["spec"]["engine"]["kvCache"]["memory"] == "1Gi"
