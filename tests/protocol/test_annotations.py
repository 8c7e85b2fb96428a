import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda_protocol.annotations import (
    CACHE_EPOCH,
    HIT_RATE_PERMILLE,
    MAX_VALUE_BYTES,
    PREFIX_HITS,
    TIERS,
    AnnotationError,
    PrefixHit,
    bucket,
    decode_cache_epoch,
    decode_prefix_hits,
    encode_cache_epoch,
    encode_hit_rate,
    encode_prefix_hits,
)

digests = st.binary(min_size=16, max_size=16)
hits_strategy = st.lists(
    st.builds(PrefixHit, digests, st.integers(0, 2**40), st.sampled_from(TIERS), st.integers(0, 2**20)), max_size=120
)


def test_the_annotations_have_their_frozen_names():
    assert (CACHE_EPOCH, PREFIX_HITS, HIT_RATE_PERMILLE) == (
        "pagoda-kv.io/cache-epoch",
        "pagoda-kv.io/prefix-hits",
        "pagoda-kv.io/hit-rate-permille",
    )


def test_prefix_hits_have_their_frozen_form_hottest_first_in_powers_of_two():
    hits = [PrefixHit(b"\x00" * 15 + b"\x01", 100, "ram", 3), PrefixHit(b"\xab" * 16, 4096, "device", 9)]
    assert encode_prefix_hits(hits) == (
        "v1;abababababababababababababababab:4096:device:8,00000000000000000000000000000001:64:ram:2"
    )
    assert encode_prefix_hits([]) == "v1;"


def test_a_cache_epoch_has_its_frozen_form():
    value = encode_cache_epoch("containerd://1f2e", bytes(range(16)))
    assert value == "containerd://1f2e/000102030405060708090a0b0c0d0e0f"
    assert decode_cache_epoch(value) == ("containerd://1f2e", bytes(range(16)))


@pytest.mark.parametrize(
    ("rate", "value"),
    [(0.0, "0"), (0.024, "0"), (0.025, "25"), (0.81, "800"), (1.0, "1000"), (-1.0, "0"), (7.0, "1000")],
)
def test_a_hit_rate_is_written_in_steps_of_25_permille(rate, value):
    assert encode_hit_rate(rate) == value


@given(st.integers(0, 2**64))
def test_a_bucket_is_the_largest_power_of_two_not_above(value):
    power = bucket(value)
    assert power <= value < max(2 * power, 1)
    assert bin(power).count("1") == (value > 0)


@given(hits_strategy)
def test_what_is_written_reads_back_in_buckets_and_fits_4_kib(hits):
    value = encode_prefix_hits(hits)
    assert len(value.encode()) <= MAX_VALUE_BYTES
    read = decode_prefix_hits(value)
    bucketed = [PrefixHit(hit.digest, bucket(hit.tokens), hit.tier, bucket(hit.heat)) for hit in hits]
    assert all(hit in bucketed for hit in read)
    assert [hit.heat for hit in read] == sorted((hit.heat for hit in bucketed), reverse=True)[: len(read)]
    assert encode_prefix_hits(read) == value


# "v1;", entries and commas: 89 of 45 bytes are exactly 4096, 91 of 44 would be one more.
@pytest.mark.parametrize(("tokens", "num_written", "num_bytes"), [(32768, 89, 4096), (4096, 90, 4052)])
def test_as_many_hits_are_written_as_fit_in_4_kib_to_the_byte(tokens, num_written, num_bytes):
    hits = [PrefixHit(bytes([number] * 16), tokens, "disk", 1) for number in range(100)]
    assert len(encode_prefix_hits(hits)) == num_bytes
    assert decode_prefix_hits(encode_prefix_hits(hits)) == hits[:num_written]


@given(hits_strategy, st.randoms(use_true_random=False))
def test_equal_sets_of_hits_are_written_alike(hits, random):
    shuffled = [*hits]
    random.shuffle(shuffled)
    assert encode_prefix_hits(shuffled) == encode_prefix_hits(hits)


DIGEST = "ab" * 16


@pytest.mark.parametrize(
    "value",
    ["", "v1", "v2;", f"v1;{DIGEST}:1:ram", f"v1;{DIGEST}:1:ram:1,", f"v1;{DIGEST}:1:pool:1", f"v1;{DIGEST}:-1:ram:1",
     f"v1;{DIGEST}:1:ram:+1", f"v1;{DIGEST}:1_0:ram:1", f"v1;{DIGEST}: 1:ram:1", f"v1;{DIGEST}:01:ram:1",
     f"v1;{DIGEST.upper()}:1:ram:1", f"v1;{DIGEST[:-2]}:1:ram:1", f"v1;{'zz' * 16}:1:ram:1", f"v1;{DIGEST}:1:ram:1:1",
     f"v1;{DIGEST}:{'9' * 5000}:ram:1"],
)  # fmt: skip
def test_another_form_of_prefix_hits_is_refused(value):
    with pytest.raises(AnnotationError):
        decode_prefix_hits(value)


@given(st.text(max_size=80))
def test_nothing_but_annotation_error_comes_out_of_any_text(value):
    for decode in (decode_prefix_hits, decode_cache_epoch):
        try:
            decode("v1;" + value)
        except AnnotationError:
            pass


@pytest.mark.parametrize(
    "value", ["", "/", "abc", "/" + "00" * 16, "a/" + "00" * 15, "a/" + "AB" * 16, "a/0 0" + "00" * 15]
)
def test_another_form_of_cache_epoch_is_refused(value):
    with pytest.raises(AnnotationError):
        decode_cache_epoch(value)


@pytest.mark.parametrize(
    ("digest", "tokens", "tier", "heat"),
    [(b"", 1, "ram", 1), (bytes(16), -1, "ram", 1), (bytes(16), 1, "pool", 1), (bytes(16), 1, "ram", -1)],
)
def test_a_hit_without_a_written_form_is_not_written(digest, tokens, tier, heat):
    with pytest.raises(AnnotationError):
        encode_prefix_hits([PrefixHit(digest, tokens, tier, heat)])
