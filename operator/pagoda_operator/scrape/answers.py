"""What a pod's two doors say, read strictly: a pod runs a user's image and may answer anything.

Engine `GET /ready` and sidecar `GET /v1/summary`, as docs/design.md gives them. Texts that come out of here go into
conditions, so they are short and of one line.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_protocol.annotations import TIERS, AnnotationError, PrefixHit, encode_prefix_hits

MAX_ANSWER_BYTES = 64 << 10  # an honest one has at most 16 KiB
MAX_TEXT = 256
_MAX_HITS = 100
_MAX_NODES = 100
_MAX_COUNT = 2**48
_STATES = ("on", "off", "none")


class AnswerError(ValueError):
    """An answer that is not what it should be; the message names the field."""


@dataclass(frozen=True)
class EngineAnswer:
    """What an engine says of itself."""

    ready: bool
    generation: int | None
    """Of the live settings that it follows."""
    proof: Mapping[str, Any] | None
    """None: it has not tried yet. Else

    `{"generated": bool, "tiers": {"ram": "ok" | "none" | "failed: <reason>", …}, "state": <mark> | None}`.
    """
    reason: str
    """Why it is not ready, else empty."""


@dataclass(frozen=True)
class SidecarAnswer:
    """What a sidecar says: the summary without its hits, and those as the annotation's value."""

    summary: Mapping[str, Any]
    hits: str


@dataclass(frozen=True)
class Failure:
    """A door that did not answer as it should."""

    outcome: str
    """For the metric: absent, silent, unreachable or wrong."""
    reason: str


@dataclass(frozen=True)
class Answers:
    """What both doors said."""

    engine: EngineAnswer | Failure
    sidecar: SidecarAnswer | Failure


def read_ready(status: int, body: bytes) -> EngineAnswer:
    """Read an answer of `/ready`.

    Raises:
        AnswerError: naming the field.
    """
    if status not in (200, 503):
        raise AnswerError(f"status {status}")
    document = _object(body)
    return EngineAnswer(
        ready=status == 200,
        generation=_integer_or_none(document, "generation"),
        proof=_proof(document.get("proof")),
        reason="" if status == 200 else _text(document, "reason"),
    )


def read_summary(status: int, body: bytes) -> SidecarAnswer:
    """Read an answer of `/v1/summary`.

    Raises:
        AnswerError: naming the field.
    """
    if status != 200:
        raise AnswerError(f"status {status}")
    document = _object(body)
    if document.get("version") != 1:
        raise AnswerError(f"version: expected 1, got {_short(document.get('version'))}")
    tiers = _mapping(document, "tiers")
    summary = {
        "version": 1,
        "epochs": {tier: _hex_or_none(_mapping(document, "epochs"), tier, 32, "epochs.") for tier in TIERS},
        "hit_ratio": _ratio_or_none(document, "hit_ratio"),
        "namespace": _hex_or_none(document, "namespace", None),
        "block_tokens": _integer_or_none(document, "block_tokens"),
        "protocol": _integer_or_none(document, "protocol"),
        "tiers": {tier: _tier(tiers, tier) for tier in ("ram", "disk")} | {"pool": _pool(tiers)},
        "state": _mark(document, "state"),
    }
    return SidecarAnswer(summary, _hits(document))


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise AnswerError("not JSON") from error
    if not isinstance(document, dict):
        raise AnswerError("not an object")
    return document


def _proof(value: object) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("generated"), bool):
        raise AnswerError("proof.generated: expected true or false")
    tiers = _mapping(value, "tiers", "proof.")
    return {
        "generated": value["generated"],
        "tiers": {tier: _text(tiers, tier, "proof.tiers.") for tier in ("ram", "disk", "pool")},
        "state": _mark(value, "state", "proof."),
    }


def _tier(tiers: Mapping[str, Any], name: str) -> dict[str, Any]:
    tier = _mapping(tiers, name, "tiers.")
    if tier.get("state") not in _STATES:
        raise AnswerError(f"tiers.{name}.state: expected one of {', '.join(_STATES)}, got {_short(tier.get('state'))}")
    return {"state": tier["state"], "reason": _text(tier, "reason", f"tiers.{name}.")}


def _pool(tiers: Mapping[str, Any]) -> dict[str, Any]:
    pool = _mapping(tiers, "pool", "tiers.")
    nodes = _mapping(pool, "nodes", "tiers.pool.")
    if len(nodes) > _MAX_NODES:
        raise AnswerError(f"tiers.pool.nodes: more than {_MAX_NODES}")
    told = {"list": _mark(pool, "list", "tiers.pool."), "nodes": {_short(name): _node(nodes, name) for name in nodes}}
    return _tier(tiers, "pool") | told


def _node(nodes: Mapping[str, Any], name: str) -> dict[str, str]:
    path = f"tiers.pool.nodes.{_short(name)}."
    if not isinstance(node := nodes[name], dict) or node.get("state") not in ("up", "down"):
        raise AnswerError(f"{path}state: expected up or down")
    return {"state": node["state"], "reason": _text(node, "reason", path)}


def _hits(document: Mapping[str, Any]) -> str:
    rows = document.get("hits")
    if not isinstance(rows, list) or len(rows) > _MAX_HITS:
        raise AnswerError(f"hits: expected a list of at most {_MAX_HITS}")
    try:
        return encode_prefix_hits(map(_hit, rows))
    except AnnotationError as error:
        raise AnswerError(f"hits: {_short(error)}") from error


def _hit(row: Any) -> PrefixHit:
    try:
        digest, tokens, tier, heat = row
        if type(tokens) is not int or not 0 <= tokens <= _MAX_COUNT or not 0 <= heat <= _MAX_COUNT:
            raise AnswerError("tokens or heat out of bounds")
        return PrefixHit(bytes.fromhex(digest), tokens, tier, int(heat))
    except (TypeError, ValueError) as error:
        raise AnswerError(f"hits: expected [digest, tokens, tier, heat], got {_short(row)}") from error


def _mapping(document: Mapping[str, Any], key: str, path: str = "") -> Mapping[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise AnswerError(f"{path}{key}: expected an object, got {_short(value)}")
    return value


def _text(document: Mapping[str, Any], key: str, path: str = "") -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise AnswerError(f"{path}{key}: expected text, got {_short(value)}")
    return one_line(value)


def _integer_or_none(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is not None and (type(value) is not int or not 0 <= value < 2**63):
        raise AnswerError(f"{key}: expected a count or null, got {_short(value)}")
    return value


def _ratio_or_none(document: Mapping[str, Any], key: str) -> float | None:
    value = document.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise AnswerError(f"{key}: expected 0 to 1 or null, got {_short(value)}")
    return float(value)


def _hex_or_none(document: Mapping[str, Any], key: str, length: int | None, path: str = "") -> str | None:
    value = document.get(key)
    if value is None:
        return None
    is_hex = isinstance(value, str) and 0 < len(value) <= 128 and set(value) <= set("0123456789abcdef")
    if not is_hex or (length is not None and len(value) != length):
        raise AnswerError(f"{path}{key}: expected {length or 'lower-case'} hex digits or null, got {_short(value)}")
    return str(value)


def _mark(document: Mapping[str, Any], key: str, path: str = "") -> str | None:
    """Return a mark, empty where there is nothing to mark; None: pods of former releases say nothing of it."""
    if key not in document:
        return None
    return _hex_or_none(document, key, 16, path) if document[key] else ""


def one_line(text: str) -> str:
    """Return `text` as it may stand in a condition: printable, one line, at most `MAX_TEXT` characters."""
    clean = "".join(character if character.isprintable() else " " for character in text[: MAX_TEXT + 1])
    return clean if len(clean) <= MAX_TEXT else clean[: MAX_TEXT - 1] + "…"


def _short(value: object) -> str:
    return one_line(str(value))[:64]
