import re

from pagoda_operator import names
from pagoda_operator.children import render_secrets
from pagoda_protocol.pool.spec import MAX_NAME_LENGTH
from tests.operator.children.pools import LONGEST_NAME, POOLS, children_of, owner_of

LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def test_with_the_longest_name_everything_fits_where_kubernetes_is_strictest() -> None:
    assert len(LONGEST_NAME) == MAX_NAME_LENGTH
    pool = POOLS["longest-name"]
    owner = owner_of(pool)
    children = [*children_of(pool).values(), *render_secrets(pool, owner, bytes)]
    for child in children:
        name = child["metadata"]["name"]
        assert LABEL.fullmatch(name)
        assert len(name) <= MAX_NAME_LENGTH + 12
        assert all(len(value) <= 63 for value in child["metadata"]["labels"].values())
    set_name = names.child_name(pool.name, names.MEMCACHED)
    assert len(f"{set_name}-0123456789") <= 63, "controller-revision-hash, a label of its pods"
    assert len(names.memcached_pod_name(pool.name, 99)) <= 63, "its pods' names are labels and host names"


def test_every_child_bears_the_labels_it_is_found_by_and_is_gone_with_its_pool() -> None:
    for pool in POOLS.values():
        owner = owner_of(pool)
        for child in [*children_of(pool).values(), *render_secrets(pool, owner, bytes)]:
            metadata = child["metadata"]
            assert (
                metadata["labels"].items()
                >= {
                    "app.kubernetes.io/name": "pagoda",
                    "app.kubernetes.io/managed-by": "pagoda-operator",
                    "app.kubernetes.io/instance": pool.name,
                    "pagoda-kv.io/pool": pool.name,
                }.items()
            )
            assert metadata["namespace"] == owner.namespace
            (reference,) = metadata["ownerReferences"]
            assert (reference["uid"], reference["controller"]) == (owner.uid, True)
            assert reference["blockOwnerDeletion"] is False, "children never hold up their pool's deletion"


def test_workloads_select_exactly_their_own_pods() -> None:
    for pool in POOLS.values():
        for child in children_of(pool).values():
            if child["kind"] not in ("Deployment", "StatefulSet"):
                continue
            wanted, pods = child["spec"]["selector"]["matchLabels"], child["spec"]["template"]["metadata"]["labels"]
            assert wanted.items() <= pods.items()
            assert set(wanted) == {"pagoda-kv.io/pool", "pagoda-kv.io/part"}


def test_a_pool_made_anew_under_its_name_gets_secrets_of_its_own() -> None:
    first, second = (f"{digits}-0000-0000-0000-000000000000" for digits in ("01234567", "89abcdef"))
    assert names.pool_secret_name("chat", first) == "chat-01234567"
    assert names.memcached_secret_name("chat", second) == "chat-mc-89abcdef"
    assert names.selector_text("chat", names.ENGINE) == "pagoda-kv.io/pool=chat,pagoda-kv.io/part=engine"
