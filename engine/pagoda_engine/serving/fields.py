"""Strict reading of a JSON object: types are checked, ranges are checked, and what nobody read is refused.

Rules: `null` is the same as absent (OpenAI's own clients send it); a bool is no number; a field that is not taken makes
`finish` fail by name, so that nothing a caller asks for is ignored in silence.
"""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from pagoda_engine.serving.errors import InvalidRequestError

# Tools, templates and digests walk values by recursion, so a depth that none of them minds is agreed on at the door.
MAX_DEPTH = 128


def parse_json_object(data: bytes) -> dict[str, Any]:
    """Parse a request body.

    Raises:
        InvalidRequestError: not UTF-8, not JSON, not an object, a number that is not finite, a lone surrogate, or
            nested deeper than `MAX_DEPTH`.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"The body is not valid UTF-8 (byte {error.start}).") from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply.") from error
    except ValueError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and is_too_deep(value):
        raise InvalidRequestError("The body is nested too deeply.")
    # A surrogate without its partner can only come from an escape, and no tokenizer can encode it.
    if rb"\ud" in data or rb"\uD" in data:
        _require_unicode(value)
    return value


def is_too_deep(value: Any) -> bool:
    """Whether a parsed JSON value is nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [item for item in level if isinstance(item, (dict, list))]
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return False
    return True


def _require_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError("The body holds half of a surrogate pair; send whole characters.") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


class Fields:
    """The fields of one JSON object, each taken once."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._path = path

    def name_of(self, field: str) -> str:
        """Return the path of `field` as it stands in error messages."""
        return f"{self._path}.{field}" if self._path else field

    def take(self, field: str) -> Any:
        """Return the value of `field`, None if absent, and count it as read."""
        return self._values.pop(field, None)

    def integer(self, field: str, low: int, high: int | None = None) -> int | None:
        """Take an integer of [low, high]."""
        value = self.take(field)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(field, f"expected an integer, got {_shown(value)}")
        if value < low or (high is not None and value > high):
            self.refuse(field, f"expected an integer {_range(low, high)}, got {_shown(value)}")
        return value

    def number(self, field: str, low: float, high: float) -> float | None:
        """Take a finite number of [low, high]."""
        value = self.take(field)
        if value is None:
            return None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.refuse(field, f"expected a number, got {_shown(value)}")
        if not low <= value <= high:  # refuses NaN too
            self.refuse(field, f"expected a number {_range(low, high)}, got {_shown(value)}")
        return float(value)

    def boolean(self, field: str) -> bool:
        """Take a boolean; absent is false."""
        value = self.take(field)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.refuse(field, f"expected true or false, got {_shown(value)}")
        return value

    def text(self, field: str) -> str | None:
        """Take a string."""
        value = self.take(field)
        if value is not None and not isinstance(value, str):
            self.refuse(field, f"expected a string, got {_shown(value)}")
        return value

    def mapping(self, field: str) -> Mapping[str, Any] | None:
        """Take an object."""
        value = self.take(field)
        if value is not None and not isinstance(value, dict):
            self.refuse(field, f"expected an object, got {_shown(value)}")
        return value

    def sequence(self, field: str) -> list[Any] | None:
        """Take a list."""
        value = self.take(field)
        if value is not None and not isinstance(value, list):
            self.refuse(field, f"expected a list, got {_shown(value)}")
        return value

    def require_neutral(self, neutral: Mapping[str, tuple[Any, ...]]) -> None:
        """Take each field of `neutral` and refuse it unless its value is one that asks for nothing."""
        for field, accepted in neutral.items():
            value = self.take(field)
            if value is not None and not any(_is_same(value, same) for same in accepted):
                wanted = " or ".join(json.dumps(same) for same in accepted)
                self.refuse(field, f"not supported; leave it out or send {wanted}")

    def finish(self, ignored: Collection[str] = ()) -> None:
        """Refuse every field that is left and not in `ignored`."""
        unknown = sorted(set(self._values) - set(ignored))
        if unknown:
            self.refuse(unknown[0], "unknown field")

    def refuse(self, field: str, reason: str) -> NoReturn:
        """Raise the error that names `field`."""
        name = self.name_of(field)
        raise InvalidRequestError(f"{name}: {reason}.", param=name)


def _is_same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "…"


def _range(low: float, high: float | None) -> str:
    return f"of at least {low}" if high is None else f"from {low} to {high}"
