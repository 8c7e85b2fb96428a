import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.tenants import (
    ANONYMOUS_SCOPE,
    SHARED_SCOPE,
    Tenants,
    TenantsError,
    TenantShares,
    admin_token,
    crossing,
    digest_secret,
    key_hash,
    parse_tenants,
    tenant_root,
    tenant_tag,
)

SECRET = bytes(range(32))
NAMESPACE = bytes(range(32, 64))
ADDRESS = bytes(range(64, 96))
SCOPE = "tenant:acme"
HASH = "sha256:" + "0" * 64
NAME_FORM = "tenants[0].name: expected a string of 1 to 253 printable characters"
HASH_FORM = 'tenants[0].keyHashes[0]: expected "sha256:" and 64 lower-case hex digits'


def hmac_by_hand(key, message):
    """RFC 2104 for a key of 32 bytes and SHA-256's block of 64."""
    inner = bytes(byte ^ 0x36 for byte in key + bytes(32))
    outer = bytes(byte ^ 0x5C for byte in key + bytes(32))
    return hashlib.sha256(outer + hashlib.sha256(inner + message).digest()).digest()


def test_the_digest_secret_equals_the_one_made_by_hand_and_its_frozen_bytes():
    assert digest_secret(SECRET) == hmac_by_hand(SECRET, b"digest")
    assert digest_secret(SECRET).hex() == "c87e6ab27c121fb67d09b7cf53a06d9a16d3b930357093b35ded8bf369dcd7ed"


def test_a_tenant_root_equals_the_one_made_by_hand_and_its_frozen_bytes():
    assert tenant_root(SECRET, NAMESPACE, SCOPE) == hmac_by_hand(SECRET, b"root" + NAMESPACE + b"tenant:acme")
    assert (
        tenant_root(SECRET, NAMESPACE, SCOPE).hex()
        == "dac1aeab3b365918f20881c6066a17e8b263cf64ba30ec3ef6629721fd1f0177"
    )


def test_a_crossing_equals_the_one_made_by_hand_and_its_frozen_bytes():
    by_hand = hmac_by_hand(SECRET, b"cross" + NAMESPACE + ADDRESS + b"tenant:acme")
    assert crossing(SECRET, NAMESPACE, ADDRESS, SCOPE) == by_hand
    assert by_hand.hex() == "4fd8db92f78ea52e13c2a6f9eab534f9d81ec32be252721e73fbb6aa34fcd555"


def test_a_tenant_tag_equals_the_one_made_by_hand_and_its_frozen_value():
    first = hmac_by_hand(SECRET, b"tagtenant:acme")[:8]
    assert tenant_tag(SECRET, SCOPE) == sum(byte << 8 * position for position, byte in enumerate(first))
    assert tenant_tag(SECRET, SCOPE) == 0x8A4EE09F422601AB


def test_a_key_hash_is_the_sha256_of_its_utf8():
    assert key_hash("kéy") == "sha256:" + hashlib.sha256(b"k\xc3\xa9y").hexdigest()


@given(st.text(max_size=20), st.text(max_size=20), st.binary(min_size=32, max_size=32))
def test_another_scope_namespace_or_secret_has_another_root(scope, other_scope, other):
    root = tenant_root(SECRET, NAMESPACE, scope)
    assert (root == tenant_root(SECRET, NAMESPACE, other_scope)) == (scope == other_scope)
    assert (root == tenant_root(SECRET, other, scope)) == (other == NAMESPACE)
    assert (root == tenant_root(other, NAMESPACE, scope)) == (other == SECRET)


def test_a_crossing_is_no_root_of_any_scope_that_spells_the_address():
    spelled = ADDRESS.decode("latin-1") + SCOPE
    assert crossing(SECRET, NAMESPACE, ADDRESS, SCOPE) != tenant_root(SECRET, NAMESPACE, spelled)


def test_parts_of_another_length_are_refused_because_they_could_spell_another_input():
    with pytest.raises(ValueError, match=r"^namespace: expected 32 bytes, got 16$"):
        tenant_root(SECRET, NAMESPACE[:16], SCOPE)
    with pytest.raises(ValueError, match=r"^address: expected 32 bytes, got 31$"):
        crossing(SECRET, NAMESPACE, ADDRESS[:31], SCOPE)


def test_without_a_tenants_file_every_caller_has_the_anonymous_scope():
    assert Tenants().scope_of(None) == ANONYMOUS_SCOPE
    assert Tenants().scope_of("Bearer anything") == ANONYMOUS_SCOPE


def test_a_key_proves_the_scope_of_its_tenant_and_any_other_header_none():
    tenants = parse_tenants(
        json.dumps({"tenants": [{"name": "acme", "keyHashes": [key_hash("sk-1"), key_hash("sk-2")]}]})
    )
    assert {tenants.scope_of(header) for header in ("Bearer sk-1", "bearer sk-2", "Bearer  sk-1 ")} == {"tenant:acme"}
    for header in (None, "", "Bearer", "Bearer ", "Basic sk-1", "sk-1", "Bearer sk-3", "Bearer \udcff"):
        assert tenants.scope_of(header) is None


def test_shares_are_read_by_scope_and_are_whole_where_nothing_is_said():
    tenants = parse_tenants(
        json.dumps(
            {
                "tenants": [
                    {"name": "a", "keyHashes": [key_hash("1")], "ramShare": 0.25, "diskShare": 1},
                    {"name": "b", "keyHashes": [key_hash("2")]},
                ]
            }
        )
    )
    assert tenants.shares == {"tenant:a": TenantShares(0.25, 1.0), "tenant:b": TenantShares(1.0, 1.0)}
    assert Tenants().shares == {}


def test_no_tenant_can_have_the_scope_of_what_is_public():
    tenants = parse_tenants(json.dumps({"tenants": [{"name": SHARED_SCOPE, "keyHashes": [key_hash("1")]}]}))
    assert tenants.scope_of("Bearer 1") not in (SHARED_SCOPE, ANONYMOUS_SCOPE)


def test_the_admin_token_equals_the_one_made_by_hand_and_its_frozen_digits():
    assert admin_token(SECRET) == hmac_by_hand(SECRET, b"admin").hex()
    assert admin_token(SECRET) == "26d538fee66c725d7203f6c4532e79131e618593909aca63038ca9f915e1693e"


def test_a_wrong_file_is_refused_in_words_that_hold_no_name_and_no_hash():
    name, key = "Zebra Holdings", key_hash("sk-zebra")
    entry = {"name": name, "keyHashes": [key]}
    for wrong in (
        [entry, entry],
        [entry, {"name": "b", "keyHashes": [key]}],
        [entry | {"ramShare": 2}],
        [entry | {"keyHashes": [key + "0"]}],
        [entry | {name: 1}],
        [entry | {"name": name + "\n"}],
    ):
        with pytest.raises(TenantsError) as refused:
            parse_tenants(json.dumps({"tenants": wrong}))
        assert "Zebra" not in str(refused.value)
        assert key.partition(":")[2][:8] not in str(refused.value)


def test_a_file_without_tenants_lets_nobody_in():
    assert parse_tenants('{"tenants": []}').scope_of("Bearer sk-1") is None
    assert parse_tenants('{"tenants": []}').scope_of(None) is None


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], 'tenants file: expected one object with the list "tenants"'),
        ({"tenants": {}}, 'tenants file: expected one object with the list "tenants"'),
        ({"tenants": [], "more": 1}, 'tenants file: expected one object with the list "tenants"'),
        (
            {"tenants": [{"name": "a"}]},
            'tenants[0]: expected the fields "name" and "keyHashes", and perhaps "ramShare", "diskShare"',
        ),
        (
            {"tenants": [{"name": "a", "keyHashes": [HASH], "ramshare": 1}]},
            'tenants[0]: expected the fields "name" and "keyHashes", and perhaps "ramShare", "diskShare"',
        ),
        ({"tenants": [{"name": "", "keyHashes": [HASH]}]}, NAME_FORM),
        ({"tenants": [{"name": "\ud800", "keyHashes": [HASH]}]}, NAME_FORM),
        ({"tenants": [{"name": "a", "keyHashes": []}]}, "tenants[0].keyHashes: expected a list with at least one hash"),
        ({"tenants": [{"name": "a", "keyHashes": ["sk-1"]}]}, HASH_FORM),
        (
            {"tenants": [{"name": "a", "keyHashes": [HASH] * 2}]},
            "tenants[0].keyHashes[1]: the same key is there twice",
        ),
        ({"tenants": [{"name": "a", "keyHashes": [HASH]}] * 2}, "tenants[1].name: another entry has the same name"),
        *(
            (
                {"tenants": [{"name": "a", "keyHashes": [HASH], name: value}]},
                f"tenants[0].{name}: expected a number above 0 and at most 1",
            )
            for name in ("ramShare", "diskShare")
            for value in (0, -0.5, 1.01, True, "1", None, [1], float("nan"), 10**400)
        ),
    ],
)
def test_a_wrong_tenants_file_is_refused_by_its_field(document, message):
    with pytest.raises(TenantsError) as refused:
        parse_tenants(json.dumps(document))
    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["tenants: []", "[" * 100_000])
def test_a_tenants_file_that_is_no_json_is_refused(text):
    with pytest.raises(TenantsError, match="not JSON"):
        parse_tenants(text)
