"""Which annotations a pod should have, and how far those that it has are from them. Pure."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

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
_MAX_RATE_DIGITS = 4  # of a permille; anybody may have written more, and Python reads no number of any length


class _Hit(NamedTuple):
    tokens: int
    """How many bits it takes to write them."""
    heat: int
    """The same."""
    tier: str
    size: int
    """By how many steps it differs from none at all."""


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
    common = hits_before.keys() & hits_after.keys()
    steps = sum(_distance(hits_before[digest], hits_after[digest]) for digest in common)
    for hits in (hits_before, hits_after):
        steps += sum(hit.size for digest, hit in hits.items() if digest not in common)
    return max(1, steps + abs(_rate_steps(written) - _rate_steps(wanted)))


def _entries(annotations: Annotations) -> set[str]:
    _, _, body = annotations.get(PREFIX_HITS, "").partition(";")
    return set(body.split(",")) if body else set()


def _hits(entries: set[str]) -> dict[str, _Hit]:
    """Measure entries by digest: that is what the first 32 characters are of all that we wrote."""
    return {entry[:32]: _measured(entry[32:]) for entry in entries}


@functools.lru_cache(maxsize=8192)  # they come by the thousand, and few differ in more than their digest
def _measured(rest: str) -> _Hit:
    """Measure `:tokens:tier:heat`; what is none counts as nothing."""
    try:
        _, tokens, tier, heat = rest.split(":")
        token_bits, heat_bits = int(tokens).bit_length(), int(heat).bit_length()
    except ValueError:
        return _Hit(0, 0, "", 0)
    return _Hit(token_bits, heat_bits, tier, token_bits + heat_bits + 1)


def _distance(before: _Hit, after: _Hit) -> int:
    return abs(before.tokens - after.tokens) + abs(before.heat - after.heat) + (before.tier != after.tier)


def _rate_steps(annotations: Annotations) -> int:
    rate = annotations.get(HIT_RATE_PERMILLE, "0")
    return int(rate) // HIT_RATE_STEP if rate.isdecimal() and len(rate) <= _MAX_RATE_DIGITS else 0
