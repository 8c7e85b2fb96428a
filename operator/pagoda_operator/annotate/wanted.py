"""Which annotations a pod should have, and how far those that it has are from them. Pure."""

from collections.abc import Mapping

from pagoda_operator.scrape.pod import EnginePod
from pagoda_operator.scrape.report import PodReport
from pagoda_protocol.annotations import (
    CACHE_EPOCH,
    HIT_RATE_PERMILLE,
    HIT_RATE_STEP,
    PREFIX_HITS,
    encode_cache_epoch,
    encode_hit_rate,
)

Annotations = Mapping[str, str]
_Hit = tuple[int, int, str]  # how many bits tokens and heat have, and the tier


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


def _hits(entries: set[str]) -> dict[str, _Hit]:
    """Measure entries by digest. Not decoded in full, as they come by the thousand; what is none counts as nothing."""
    hits: dict[str, _Hit] = {}
    for entry in entries:
        try:
            digest, tokens, tier, heat = entry.split(":")
            hits[digest] = (int(tokens).bit_length(), int(heat).bit_length(), tier)
        except ValueError:
            continue
    return hits


def _steps(before: _Hit | None, after: _Hit | None) -> int:
    if before is None or after is None:
        return sum(tokens + heat + 1 for tokens, heat, _ in filter(None, (before, after)))
    return abs(before[0] - after[0]) + abs(before[1] - after[1]) + (before[2] != after[2])


def _rate_steps(annotations: Annotations) -> int:
    rate = annotations.get(HIT_RATE_PERMILLE, "0")
    return int(rate) // HIT_RATE_STEP if rate.isdecimal() else 0
