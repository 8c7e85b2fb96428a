"""The lines of the hint stream (`docs/design.md`), from bytes to typed values. Pure.

Unknown fields of a known line are let through, so that a newer sidecar can say more; a known field of a wrong form is
an error that names it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_protocol.digests import DIGEST_BYTES
from pagoda_router.errors import HintError

DEVICE, RAM, DISK = "device", "ram", "disk"
TIERS = (DEVICE, RAM, DISK)
_REQUIRED_TIERS = (DEVICE, RAM)

# (tokens, tier, heat): a plain tuple, as there may be hundreds of thousands.
Row = tuple[int, str, float]


@dataclass(frozen=True)
class Head:
    """What a pod is, and the epoch of each tier (None: the tier holds nothing)."""

    digest_version: int
    models: tuple[str, ...]
    template_digest: bytes
    block_tokens: int
    epochs: Mapping[str, str | None]


@dataclass(frozen=True)
class Rows:
    """Digests that are known from now on, and digests that are no longer."""

    set: Mapping[bytes, Row]
    drop: tuple[bytes, ...]


@dataclass(frozen=True)
class Epoch:
    """Every row of the tier is void."""

    tier: str
    epoch: str | None


@dataclass(frozen=True)
class Load:
    """What the pod says of its work."""

    num_requests: int
    """Running and waiting, whoever sent them."""
    outstanding_seconds: float
    prefill_tokens_per_second: float
    free_work_seconds: float
    ram_seconds_per_token: float = 0.0
    """What loading a token from RAM has cost lately; 0 while unknown. Likewise for the disk."""
    disk_seconds_per_token: float = 0.0


@dataclass(frozen=True)
class Quiet:
    """`live` or `beat`: nothing changed."""


Message = Head | Rows | Epoch | Load | Quiet


def parse_line(line: bytes) -> tuple[int, Message]:
    """Return the sequence and content of one line.

    Raises:
        HintError: naming what is wrong.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise HintError(f"line is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise HintError("line: expected an object")
    kind = document.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise HintError(f"type: unknown {str(kind)[:40]!r}")
    return _whole(document, "sequence"), reader(document)


def _head(document: Mapping[str, Any]) -> Head:
    models, epochs = document.get("models"), document.get("epochs")
    if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
        raise HintError("models: expected a list of names")
    if not isinstance(epochs, dict) or not set(_REQUIRED_TIERS) <= set(epochs):
        raise HintError('epochs: expected an object with "device" and "ram"')
    return Head(
        digest_version=_whole(document, "digest_version"),
        models=tuple(models),
        template_digest=_hex(document.get("template_digest"), "template_digest"),
        block_tokens=_whole(document, "block_tokens"),
        epochs={tier: _epoch_value(epochs.get(tier), f"epochs.{tier}") for tier in TIERS},
    )


def _rows(document: Mapping[str, Any]) -> Rows:
    added, dropped = document.get("set", []), document.get("drop", [])
    if not isinstance(added, list) or not isinstance(dropped, list):
        raise HintError("set, drop: expected lists")
    return Rows(dict(_row(row) for row in added), tuple(_digest(digest, "drop") for digest in dropped))


def _row(row: Any) -> tuple[bytes, Row]:
    if not isinstance(row, list) or len(row) != 4:
        raise HintError("set: expected rows of digest, tokens, tier, heat")
    digest, tokens, tier, heat = row
    if not _is_whole(tokens) or tier not in TIERS or not _is_amount(heat):
        raise HintError(f"set: wrong tokens, tier or heat: {tokens!r}, {tier!r}, {heat!r}")
    return _digest(digest, "set"), (tokens, TIERS[TIERS.index(tier)], float(heat))  # one string for all rows of a tier


def _epoch(document: Mapping[str, Any]) -> Epoch:
    tier = document.get("tier")
    if tier not in TIERS:
        raise HintError(f"tier: expected one of {', '.join(TIERS)}, found {tier!r}")
    return Epoch(tier, _epoch_value(document.get("epoch"), "epoch"))


def _load(document: Mapping[str, Any]) -> Load:
    num_requests = sum(_whole(document, name) for name in ("num_running", "num_waiting"))
    names = (
        "outstanding_seconds",
        "prefill_tokens_per_second",
        "free_work_seconds",
        "ram_seconds_per_token",
        "disk_seconds_per_token",
    )
    values = [document.get(name, 0.0) for name in names]
    for name, value in zip(names, values, strict=True):
        if not _is_amount(value):
            raise HintError(f"{name}: expected a number of at least 0, found {value!r}")
    return Load(num_requests, *(float(value) for value in values))


def _quiet(_: Mapping[str, Any]) -> Quiet:
    return Quiet()


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Message]] = {
    "head": _head,
    "rows": _rows,
    "epoch": _epoch,
    "load": _load,
    "live": _quiet,
    "beat": _quiet,
}


def _digest(value: Any, path: str) -> bytes:
    digest = _hex(value, path)
    if len(digest) != DIGEST_BYTES:
        raise HintError(f"{path}: expected digests of {2 * DIGEST_BYTES} hex digits")
    return digest


def _hex(value: Any, path: str) -> bytes:
    try:
        return bytes.fromhex(value)
    except (TypeError, ValueError) as error:
        raise HintError(f"{path}: expected hex digits") from error


def _epoch_value(value: Any, path: str) -> str | None:
    if value is None or (isinstance(value, str) and 0 < len(value) <= 64):
        return value
    raise HintError(f"{path}: expected an epoch or null")


def _whole(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if not _is_whole(value):
        raise HintError(f"{name}: expected a whole number of at least 0, found {str(value)[:40]!r}")
    return int(value)  # type: ignore[arg-type]  # checked above


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
