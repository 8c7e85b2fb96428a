"""Another codec, or another revision of one, below a real sidecar: no hit, no error, and the old records age out."""

from dataclasses import replace

import pytest

from pagoda_engine.model.codecs.registry import CODECS as MODEL_CODECS
from pagoda_engine.model.interface import ModelFacts
from pagoda_engine.serving.loading import namespace_of
from pagoda_protocol.records import CODECS, unpack_header
from pagoda_sidecar.client import EngineIdentity
from tests.engine.model.codecs.pages import codec_of
from tests.sidecar.support import SidecarProcess, chain, client_of, load, sidecar_process, store, wait_until

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
def test_e16_blocks_of_another_codec_are_never_found_and_age_out(other: ModelFacts) -> None:
    first = facts_of("Int8")
    addresses = chain(6)
    with sidecar_process() as sidecar:
        with client_of(sidecar, identity_of(first)) as client:
            assert store(client, addresses).stored == 6
            assert load(client, addresses).sources == ["ram"] * 6
        with client_of(sidecar, identity_of(other)) as client:
            assert client.lookup(addresses, 1.0) == []
            assert load(client, addresses).sources == []
            assert store(client, addresses).stored == 6
            assert load(client, addresses).sources == ["ram"] * 6
            fill(sidecar, client_codec=CODECS[other.codec], size=other.payload_bytes)
            assert client.num_integrity_failures == 0
        with client_of(sidecar, identity_of(first)) as client:
            assert client.lookup(addresses, 1.0) == []
        assert sidecar.metric("pagoda_leases") == 0


def fill(sidecar: SidecarProcess, client_codec: int, size: int) -> None:
    """Every record that the arena holds by now is of the codec that is attached."""
    wait_until(lambda: len(sealed_codecs(sidecar, size)) > 0, what="sealed records")
    assert set(sealed_codecs(sidecar, size)) == {client_codec}


def sealed_codecs(sidecar: SidecarProcess, size: int) -> list[int]:
    """Return the codec of each sealed record header in the arena's file that has this payload size."""
    data = (sidecar.volume / "arena").read_bytes()
    found = []
    at = data.find(b"PGDK")
    while at >= 0:
        header = unpack_header(data[at : at + 128])
        if header.payload_bytes == size:
            found.append(header.codec)
        at = data.find(b"PGDK", at + 128)
    return found
