"""The routing annotations on engine pods: hints coarse and slow enough for the API server, for any router.

`prefix-hits` is `v1;digest:tokens:tier:heat,…`, hottest first, tokens and heat rounded down to powers of two.
"""

from collections.abc import Iterable
from typing import NamedTuple

GROUP = "pagoda-kv.io"
CACHE_EPOCH = f"{GROUP}/cache-epoch"
PREFIX_HITS = f"{GROUP}/prefix-hits"
HIT_RATE_PERMILLE = f"{GROUP}/hit-rate-permille"

MAX_VALUE_BYTES = 4096
HIT_RATE_STEP = 25
TIERS = ("device", "ram", "disk")
_VERSION = "v1"


class AnnotationError(ValueError):
    """An annotation value that cannot be read; the message says which part."""


class PrefixHit(NamedTuple):
    """One hint: `tokens` of the prefix behind `digest` (16 bytes) are resident in `tier`.

    A bare tuple, since the operator makes two thousand of them in a second.
    """

    digest: bytes
    tokens: int
    tier: str
    heat: int


def bucket(value: int) -> int:
    """Return the largest power of two that is not above `value` (0 for 0), so that small changes write nothing."""
    return 1 << value.bit_length() >> 1


def encode_prefix_hits(hits: Iterable[PrefixHit]) -> str:
    """Write as many hits as fit in 4 KiB, hottest first, then longest; equal sets give equal values.

    Raises:
        AnnotationError: a hit that has no written form.
    """
    ordered = sorted([
        (-bucket(heat), -bucket(tokens), digest, tier) for digest, tokens, tier, heat in map(_checked, hits)
    ])  # fmt: skip
    entries: list[str] = []
    length = len(_VERSION)  # each entry has a separator before it, the first one the semicolon
    for heat, tokens, digest, tier in ordered:
        entry = f"{digest.hex()}:{-tokens}:{tier}:{-heat}"
        length += 1 + len(entry)
        if length > MAX_VALUE_BYTES:
            break
        entries.append(entry)
    return f"{_VERSION};{','.join(entries)}"


def decode_prefix_hits(value: str) -> list[PrefixHit]:
    """Read a `prefix-hits` value.

    Raises:
        AnnotationError: another version, or an entry that is not digest:tokens:tier:heat.
    """
    version, separator, body = value.partition(";")
    if version != _VERSION or not separator:
        raise AnnotationError(f"expected {_VERSION}; at the start, got {value[:16]!r}")
    return [_decode_entry(entry) for entry in body.split(",")] if body else []


def _decode_entry(entry: str) -> PrefixHit:
    parts = entry.split(":")
    if len(parts) != 4:
        raise AnnotationError(f"expected digest:tokens:tier:heat, got {entry[:64]!r}")
    digest, tokens, tier, heat = parts
    try:
        hit = _checked(PrefixHit(bytes.fromhex(digest), int(tokens), tier, int(heat)))
    except ValueError as error:
        raise AnnotationError(f"not a hit: {entry[:64]!r}: {error}") from error
    if (digest, tokens, heat) != (hit.digest.hex(), str(hit.tokens), str(hit.heat)):
        raise AnnotationError(f"not a hit: {entry[:64]!r}")  # Python reads "1_0" and " 1" as numbers too
    return hit


def _checked(hit: PrefixHit) -> PrefixHit:
    digest, tokens, tier, heat = hit
    if len(digest) != 16 or tier not in TIERS or tokens < 0 or heat < 0:
        raise AnnotationError(f"not a hit: {digest.hex()}:{tokens}:{tier}:{heat}")
    return hit


def encode_cache_epoch(container_id: str, arena_epoch: bytes) -> str:
    """Write `<engine containerID>/<arena epoch>`; a reader compares the first part with `containerStatuses`."""
    return f"{container_id}/{arena_epoch.hex()}"


def decode_cache_epoch(value: str) -> tuple[str, bytes]:
    """Read a `cache-epoch` value into container id and epoch (16 bytes).

    Raises:
        AnnotationError: when it is not of that form.
    """
    container_id, _, epoch = value.rpartition("/")
    try:
        raw = bytes.fromhex(epoch)
    except ValueError as error:
        raise AnnotationError(f"not a cache epoch: {value[:96]!r}") from error
    if not container_id or len(raw) != 16 or epoch != raw.hex():
        raise AnnotationError(f"not a cache epoch: {value[:96]!r}")
    return container_id, raw


def encode_hit_rate(rate: float) -> str:
    """Write a hit rate of 0 to 1 in permille, in steps of 25."""
    permille = round(min(max(rate, 0.0), 1.0) * 1000)
    return str(permille // HIT_RATE_STEP * HIT_RATE_STEP)
