"""Which annotations a pod should have."""

from typing import Any

from pagoda_operator.annotate.wanted import bucket_steps, is_other_epoch, wanted_annotations
from pagoda_operator.scrape import PodReport
from pagoda_operator.scrape.answers import read_summary
from pagoda_operator.scrape.pod import EnginePod, read_pod
from pagoda_protocol.annotations import (
    CACHE_EPOCH,
    HIT_RATE_PERMILLE,
    PREFIX_HITS,
    PrefixHit,
    decode_prefix_hits,
    encode_prefix_hits,
)
from tests.operator.scrape.pods import ARENA, as_bytes, engine_pod, summary


def pod(**changes: Any) -> EnginePod:
    read = read_pod(engine_pod(**changes))
    assert read is not None
    return read


def report(container: str | None = "containerd://e1", **changes: Any) -> PodReport:
    answer = read_summary(200, as_bytes(summary(**changes)))
    return PodReport(True, 3, None, "", answer.summary, 0.0, hits=answer.hits, container_id=container)


def hits(*entries: tuple[int, int, str, int]) -> dict[str, str]:
    return {PREFIX_HITS: encode_prefix_hits(PrefixHit(bytes([n] * 16), *rest) for n, *rest in entries)}  # type: ignore[arg-type]


def test_a_pod_is_annotated_with_its_epoch_its_hits_and_its_hit_rate() -> None:
    wanted = wanted_annotations(pod(), report())
    assert wanted is not None
    assert wanted[CACHE_EPOCH] == f"containerd://e1/{ARENA}"
    assert wanted[HIT_RATE_PERMILLE] == "800"
    assert [hit.tokens for hit in decode_prefix_hits(wanted[PREFIX_HITS])] == [512, 64]


def test_a_hundred_hits_take_at_most_4_kib() -> None:
    many = [[f"{number:032x}", 2**20, "device", 2**20] for number in range(100)]
    wanted = wanted_annotations(pod(), report(hits=many))
    assert wanted is not None
    assert 4000 < len(wanted[PREFIX_HITS]) <= 4096


def test_nothing_is_known_of_a_pod_that_was_not_asked_or_whose_sidecar_was_silent() -> None:
    silent = PodReport(True, 3, None, "", None, 0.0, container_id="containerd://e1")
    assert wanted_annotations(pod(), None) is None
    assert wanted_annotations(pod(), silent) is None


def test_what_was_said_beside_another_container_is_of_no_use() -> None:
    assert wanted_annotations(pod(container="containerd://e2"), report("containerd://e1")) is None
    assert wanted_annotations(pod(container=None), report(None)) is None


def test_a_pod_without_an_arena_has_neither_epoch_nor_hits_and_absent_is_not_zero() -> None:
    epochs = {"device": None, "ram": None, "disk": None}
    assert wanted_annotations(pod(), report(epochs=epochs, hits=[], hit_ratio=None)) == {}
    assert wanted_annotations(pod(), report(epochs=epochs, hits=[], hit_ratio=0)) == {HIT_RATE_PERMILLE: "0"}


def test_changes_within_buckets_are_none() -> None:
    before = wanted_annotations(pod(), report(hits=[["11" * 16, 600, "ram", 9]], hit_ratio=0.801))
    after = wanted_annotations(pod(), report(hits=[["11" * 16, 700, "ram", 15.9]], hit_ratio=0.824))
    assert before is not None
    assert after is not None
    assert bucket_steps(before, after) == 0


def test_change_is_counted_in_steps_of_buckets() -> None:
    before = hits((1, 512, "ram", 8), (2, 64, "ram", 8))
    assert bucket_steps(before, before) == 0
    assert bucket_steps(before, hits((1, 1024, "ram", 8), (2, 64, "ram", 8))) == 1
    assert bucket_steps(before, hits((1, 512, "disk", 8), (2, 64, "ram", 8))) == 1
    assert bucket_steps(before, hits((1, 512, "ram", 64), (2, 16, "ram", 8))) == 5
    assert bucket_steps(before, hits((1, 512, "ram", 8))) == 12  # 7 bits of tokens, 4 of heat, and gone
    assert bucket_steps(before | {HIT_RATE_PERMILLE: "800"}, before | {HIT_RATE_PERMILLE: "900"}) == 4


def test_what_somebody_else_scribbled_over_ours_is_a_change() -> None:
    wanted = hits((1, 512, "ram", 8))
    for scribble in ("", "v1;", "v2;what", "nonsense", "v1;x:1:ram:1,,"):
        assert bucket_steps({PREFIX_HITS: scribble}, wanted) >= 1
    assert bucket_steps({HIT_RATE_PERMILLE: "²"}, {HIT_RATE_PERMILLE: "25"}) >= 1


def test_another_arena_or_container_is_another_epoch_and_other_hits_are_not() -> None:
    now = {CACHE_EPOCH: f"containerd://e1/{ARENA}"}
    assert not is_other_epoch(now | hits((1, 1, "ram", 1)), now)
    assert is_other_epoch({CACHE_EPOCH: f"containerd://e0/{ARENA}"}, now)
    assert is_other_epoch({}, now)
    assert is_other_epoch(now, {})
