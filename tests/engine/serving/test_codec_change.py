"""Another codec, or another revision of one, below a real sidecar: no hit, no error, and the old records age out."""

from dataclasses import replace

import pytest

from pagoda_engine.model.codecs.registry import CODECS as MODEL_CODECS
from pagoda_engine.model.interface import ModelFacts
from pagoda_engine.serving.loading import namespace_of
from pagoda_protocol.records import CODECS, RECORD_HEADER_BYTES, unpack_header
from pagoda_sidecar.arena.layout import (
    ENTRY_BYTES,
    RECORD_OFFSET,
    SEALED,
    SUPERBLOCK_BYTES,
    Geometry,
    unpack_superblock,
)
from pagoda_sidecar.client import EngineIdentity, TierClient
from tests.engine.model.codecs.pages import codec_of
from tests.sidecar.support import SidecarProcess, chain, client_of, load, sidecar_process, store, wait_until

CHAIN_BLOCKS = 50
FACTS = ModelFacts(
    block_tokens=4, payload_bytes=0, num_pages=1, vocab_size=8, max_position=64, kv_dtype="Float32", codec="Raw",
    codec_revision=1, config_digest="0" * 64, weights_digest="1" * 64,
)  # fmt: skip


def facts_of(codec: str, revision: int = 1) -> ModelFacts:
    size = codec_of(codec, "Float32", (2, 2, 4, 64)).payload_bytes
    return replace(FACTS, payload_bytes=size, codec=codec, codec_revision=revision)


def identity_of(facts: ModelFacts) -> EngineIdentity:
    return EngineIdentity(
        namespace_of(facts), facts.payload_bytes, facts.block_tokens, ("m",), b"t" * 16, CODECS[facts.codec]
    )


def test_each_codec_and_each_revision_has_a_namespace_of_its_own() -> None:
    every = [facts_of(codec, revision) for codec in MODEL_CODECS for revision in (1, 2)]
    assert len({namespace_of(facts) for facts in every}) == len(every)


@pytest.mark.parametrize("other", [facts_of("Int4"), facts_of("Nvfp4"), facts_of("Int8", revision=2)])
def test_e14_blocks_of_another_codec_are_never_found_and_age_out(other: ModelFacts) -> None:
    first = facts_of("Int8")
    addresses = chain(6)
    with sidecar_process() as sidecar:
        with client_of(sidecar, identity_of(first)) as client:
            fill(sidecar, client)
            assert store(client, addresses).stored == 6
            assert load(client, addresses).sources == ["ram"] * 6
            assert namespaces_of(sidecar) == [namespace_of(first)[:16]] * num_slots(sidecar)
        with client_of(sidecar, identity_of(other)) as client:
            assert client.lookup(addresses, 1.0) == []
            assert load(client, addresses).sources == []
            fill(sidecar, client)
            assert store(client, addresses).stored == 6
            assert load(client, addresses).sources == ["ram"] * 6
            assert namespaces_of(sidecar) == [namespace_of(other)[:16]] * num_slots(sidecar)
            assert client.num_integrity_failures == 0
        with client_of(sidecar, identity_of(first)) as client:
            assert client.lookup(addresses, 1.0) == []
        wait_until(lambda: sidecar.metric("pagoda_leases") == 0, what="the last lease to be given back")


def geometry_of(sidecar: SidecarProcess) -> Geometry:
    with (sidecar.volume / "arena").open("rb") as arena:
        return unpack_superblock(arena.read(SUPERBLOCK_BYTES))[1]


def num_slots(sidecar: SidecarProcess) -> int:
    return geometry_of(sidecar).num_slots


def fill(sidecar: SidecarProcess, client: TierClient) -> None:
    """Store chains until every slot is taken."""
    for seed in range(1, 2 + num_slots(sidecar) // CHAIN_BLOCKS):
        assert store(client, chain(CHAIN_BLOCKS, seed)).stored == CHAIN_BLOCKS
    wait_until(lambda: len(namespaces_of(sidecar)) == num_slots(sidecar), what="a full arena")


def namespaces_of(sidecar: SidecarProcess) -> list[bytes]:
    """Return the namespace of every sealed record in the arena's file, whoever is attached."""
    data, geometry = (sidecar.volume / "arena").read_bytes(), geometry_of(sidecar)
    entries = [data[geometry.entry_offset(slot) :][:ENTRY_BYTES] for slot in range(geometry.num_slots)]
    records = [entry[RECORD_OFFSET:][:RECORD_HEADER_BYTES] for entry in entries if entry[0] == SEALED]
    return [unpack_header(record).namespace for record in records]
