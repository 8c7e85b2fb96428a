"""Which annotations a pod should have, and how far those that it has are from them. Pure."""

from collections.abc import Mapping

from pagoda_operator.scrape import PodReport
from pagoda_operator.scrape.pod import EnginePod
from pagoda_protocol.annotations import (
    CACHE_EPOCH,
    HIT_RATE_PERMILLE,
    HIT_RATE_STEP,
    PREFIX_HITS,
    PrefixHit,
    decode_prefix_hits,
    encode_cache_epoch,
    encode_hit_rate,
)

Annotations = Mapping[str, str]


def wanted_annotations(pod: EnginePod, report: PodReport | None) -> Annotations | None:
    """Return all of our annotations as they should be; None: nothing is known that holds, so leave what is there.

    What a pod said is of the engine's container that ran before it was asked. Once another one runs, it is of no use:
    what is on the pod then names the old container, so that no reader believes it.
    """
    if report is None or report.summary is None or not pod.container_id or report.container_id != pod.container_id:
        return None
    arena_epoch, hit_ratio = report.summary["epochs"]["ram"], report.summary["hit_ratio"]
    wanted = {}
    if arena_epoch is not None:  # without an arena there is no digest table, and nothing to say of one
        wanted[CACHE_EPOCH] = encode_cache_epoch(pod.container_id, bytes.fromhex(arena_epoch))
        wanted[PREFIX_HITS] = report.hits
    if hit_ratio is not None:
        wanted[HIT_RATE_PERMILLE] = encode_hit_rate(hit_ratio)
    return wanted


def is_other_epoch(written: Annotations, wanted: Annotations) -> bool:
    """Whether what is written is of another life of the cache, so that correcting it may not wait."""
    return written.get(CACHE_EPOCH) != wanted.get(CACHE_EPOCH)


def bucket_steps(written: Annotations, wanted: Annotations) -> int:
    """Return by how many steps of their buckets the two differ; 0 only if nothing would be written."""
    if dict(written) == dict(wanted):
        return 0
    before, after = _entries(written), _entries(wanted)
    hits_before, hits_after = _hits(before - after), _hits(after - before)
    steps = sum(_steps(hits_before.get(key), hits_after.get(key)) for key in hits_before.keys() | hits_after.keys())
    return max(1, steps + abs(_rate_steps(written) - _rate_steps(wanted)))


def _entries(annotations: Annotations) -> set[str]:
    _, _, body = annotations.get(PREFIX_HITS, "").partition(";")
    return set(body.split(",")) if body else set()


def _hits(entries: set[str]) -> dict[bytes, PrefixHit]:
    """Read entries; what somebody else wrote there and is none of ours counts as nothing."""
    hits = {}
    for entry in entries:
        try:
            (hit,) = decode_prefix_hits(f"v1;{entry}")
        except ValueError:
            continue
        hits[hit.digest] = hit
    return hits


def _steps(before: PrefixHit | None, after: PrefixHit | None) -> int:
    if before is None or after is None:
        return sum(_height(hit.tokens) + _height(hit.heat) + 1 for hit in (before, after) if hit is not None)
    tokens = abs(_height(before.tokens) - _height(after.tokens))
    heat = abs(_height(before.heat) - _height(after.heat))
    return tokens + heat + (before.tier != after.tier)


def _height(value: int) -> int:
    return value.bit_length()


def _rate_steps(annotations: Annotations) -> int:
    rate = annotations.get(HIT_RATE_PERMILLE, "0")
    return int(rate) // HIT_RATE_STEP if rate.isdecimal() else 0
