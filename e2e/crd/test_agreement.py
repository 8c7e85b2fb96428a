"""The API server and the parser are two judges of one contract: whatever a spec holds, they say the same.

Known and meant: the API server drops nulls, which the parser refuses, and takes 20.0 for 20. Both count a fraction of a
byte as the next whole byte only after comparing, so a size within one byte of a bound is not asked for here.
"""

from typing import Any

from hypothesis import HealthCheck, given, settings

from crds.schema import load, version
from e2e.crd.generated import right_specs, specs
from e2e.crd.pools import Pools, RefusedError
from pagoda_protocol.pool.spec import InferencePool, SpecError, parse_pool

SPEC = version(load())["schema"]["openAPIV3Schema"]["properties"]["spec"]
once = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def judge(pools: Pools, spec: Any) -> None:
    """Hold both judges to one verdict, and to one reading of what they accept."""
    head = {"apiVersion": "pagoda-kv.io/v1alpha1", "kind": "InferencePool", "metadata": {"name": "drawn"}}
    manifest = {**head, "spec": spec}
    parsed, said = by_parser(manifest)
    stored, said_there = by_server(pools, manifest)
    assert (stored is None) == (parsed is None), f"of {spec} the parser says {said!r}, the API server {said_there!r}"
    if stored is not None:
        assert parse_pool(stored) == parsed


def by_parser(manifest: Any) -> tuple[InferencePool | None, str]:
    try:
        return parse_pool(manifest), ""
    except SpecError as error:
        return None, str(error)


def by_server(pools: Pools, manifest: Any) -> tuple[Any, str]:
    try:
        return pools.try_to_create(manifest), ""
    except RefusedError as error:
        return None, str(error)


@once
@given(spec=specs(SPEC))
def test_both_judges_say_the_same_of_a_spec_that_is_wrong_somewhere(pools: Pools, spec: Any) -> None:
    judge(pools, spec)


@once
@given(spec=right_specs(SPEC))
def test_both_judges_say_the_same_of_a_spec_that_follows_the_schema(pools: Pools, spec: Any) -> None:
    judge(pools, spec)
