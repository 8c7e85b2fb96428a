"""Pull secrets reach pods through their ServiceAccounts: whatever is said of them, no pod is made anew for it."""

import copy
from dataclasses import replace
from typing import Any

import pytest

from pagoda_operator.changes import Plan, Write, key_of, plan
from pagoda_operator.children import render
from pagoda_operator.compare import stamp
from tests.operator.children.pools import IMAGES, POOLS, SEEN, UID, children_of, owner_of

Json = dict[str, Any]
POOL = POOLS["all-tiers"]
PLAIN = children_of(POOL)
IMAGES_WITH_SECRETS = replace(IMAGES, pull_secrets=("registry", "mirror"))
WITH_SECRETS = {key_of(child): child for child in render(POOL, owner_of(POOL), IMAGES_WITH_SECRETS, SEEN)}


def accounts(children: dict[tuple[str, str], Json]) -> dict[str, Json]:
    return {name: child for (kind, name), child in children.items() if kind == "ServiceAccount"}


def there(children: dict[tuple[str, str], Json]) -> dict[tuple[str, str], Json]:
    """Return the children as they would be in the cluster."""
    stamped = {key: copy.deepcopy(stamp(child)) for key, child in children.items()}
    for child in stamped.values():
        child["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    return stamped


def test_the_account_of_every_part_names_all_pull_secrets_in_their_order() -> None:
    assert len(accounts(WITH_SECRETS)) == 3
    for account in accounts(WITH_SECRETS).values():
        assert account["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]


def test_nothing_but_the_accounts_knows_of_them() -> None:
    for key, child in WITH_SECRETS.items():
        assert {field: value for field, value in child.items() if field != "imagePullSecrets"} == PLAIN[key]


@pytest.mark.parametrize(("before", "after"), [(PLAIN, WITH_SECRETS), (WITH_SECRETS, PLAIN)], ids=["given", "taken"])
def test_an_operator_that_is_told_otherwise_writes_the_accounts_alone(
    before: dict[tuple[str, str], Json], after: dict[tuple[str, str], Json]
) -> None:
    found = plan(UID, tuple(after.values()), there(before))
    written = [key_of(action.manifest) for action in found.actions if isinstance(action, Write)]
    assert written == [("ServiceAccount", name) for name in accounts(after)]
    assert len(written) == len(found.actions)


@pytest.mark.parametrize("wanted", [PLAIN, WITH_SECRETS], ids=["without", "with"])
def test_what_others_add_to_an_account_is_not_fought_over(wanted: dict[tuple[str, str], Json]) -> None:
    observed = there(wanted)
    for name in accounts(wanted):
        account = observed["ServiceAccount", name]
        # As OpenShift does with the Secret of its own registry, again and again.
        account["imagePullSecrets"] = [{"name": f"{name}-dockercfg"}, *account.get("imagePullSecrets", ())]
    assert plan(UID, tuple(wanted.values()), observed) == Plan(())
