import dataclasses
import hashlib

import pytest

from pagoda_protocol.namespace import Namespace

NAMESPACE = Namespace(config_digest="c" * 64, weights_digest="e" * 64, kv_dtype="Float32", block_tokens=16)


def test_a_namespace_equals_the_hash_made_by_hand_and_its_frozen_bytes():
    written = (
        '{"adapter_digest":null,"block_tokens":16,"codec":"Raw","config_digest":"' + "c" * 64 + '",'
        '"kv_dtype":"Float32","layout_revision":1,"schema":1,'
        '"weight_values":"None","weights_digest":"' + "e" * 64 + '"}'
    )  # fmt: skip
    assert NAMESPACE.digest() == hashlib.sha256(written.encode()).digest()
    assert NAMESPACE.digest().hex() == "f2a3b8f42177b2c5a94dc8f1d0b25c92ae8a892f6c0a48cb9d273b487163c03a"


@pytest.mark.parametrize(
    "change",
    [{"config_digest": "d" * 64}, {"weights_digest": "d" * 64}, {"kv_dtype": "BFloat16"}, {"block_tokens": 32},
     {"adapter_digest": "a" * 64}, {"weight_values": "Int8"}, {"codec": "Int8"}, {"layout_revision": 2}],
)  # fmt: skip
def test_every_field_separates_namespaces(change):
    assert dataclasses.replace(NAMESPACE, **change).digest() != NAMESPACE.digest()


def test_e13_another_adapter_is_another_namespace():
    adapters = [dataclasses.replace(NAMESPACE, adapter_digest=digest) for digest in (None, "a" * 64, "b" * 64)]
    assert len({namespace.digest() for namespace in adapters}) == 3


def test_no_field_is_left_out_of_the_test_above():
    assert len(dataclasses.fields(Namespace)) == 8
