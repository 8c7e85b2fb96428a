"""What the router reads of a request: enough to digest it and to guess its work. The engine judges the rest."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_protocol.digests import request_points
from pagoda_protocol.live import LiveSettings
from pagoda_protocol.tenants import Tenants
from pagoda_router.errors import RequestError

BYTES_PER_TOKEN = 4.0  # of English text, until a known prefix says better
DEFAULT_DECODE_TOKENS = 128  # when the client sets no limit
MAX_DECODE_TOKENS = 256  # a limit is rarely reached, so a larger one says nothing about the work
_MAX_CHOICES = 8

# (digest, bytes of the canonical stream before it), in stream order.
Points = tuple[tuple[bytes, int], ...]


@dataclass(frozen=True)
class ParsedRequest:
    """The facts of one body."""

    body: Mapping[str, Any]
    num_bytes: int
    num_decode_tokens: int
    """Guess of how many tokens will be generated, over all choices."""


def parse_request(raw: bytes) -> ParsedRequest:
    """Read a body.

    Raises:
        RequestError: it is not one JSON object in UTF-8.
    """
    try:
        body = json.loads(raw)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {error.start}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error
    except ValueError as error:  # also numbers of too many digits
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    return ParsedRequest(body, len(raw), _decode_tokens(body))


@dataclass(frozen=True)
class Digester:
    """Computes the digests of requests as engines do: from the same key, tenants and public texts."""

    key: bytes
    tenants: Callable[[], Tenants]
    """Returns the newest version, as `live` does."""
    live: Callable[[], LiveSettings]

    def scope_of(self, authorization: str | None) -> str | None:
        """Return the scope that an `Authorization` header proves, or None if it proves none."""
        return self.tenants().scope_of(authorization)

    def points(
        self, scope: str, template_digests: Iterable[bytes], body: Mapping[str, Any]
    ) -> dict[bytes, Points] | None:
        """Return a request's points for each template digest, or None if it has no canonical stream."""
        points: dict[bytes, Points] = {}
        public_texts = self.live().shared_prefixes
        try:
            for template in template_digests:
                found = request_points(self.key, scope, template, body, public_texts)
                points[template] = tuple((point.digest, point.position) for point in found)
        except (ValueError, TypeError, RecursionError):  # a form that the engine will refuse or that has no digests
            return None
        return points


def _decode_tokens(body: Mapping[str, Any]) -> int:
    limit = _whole(body.get("max_completion_tokens")) or _whole(body.get("max_tokens")) or DEFAULT_DECODE_TOKENS
    choices = min(_whole(body.get("n")) or 1, _MAX_CHOICES)
    return min(limit, MAX_DECODE_TOKENS) * choices


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if is_whole else None
