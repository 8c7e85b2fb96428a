"""Reads nested mappings that a person wrote, and collects everything that is wrong with them by field path.

A `Reader` stands on one mapping. Each field is asked for by name, so that at the end what nobody asked for is unknown.
A field that cannot be read holds None until `Problems.raise_if_any`; only a check guarded by `Problems.is_clear` may
look at values before that.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from pagoda_protocol.pool.quantities import QuantityError, format_bytes, parse_bytes, parse_millicores

T = TypeVar("T")
Choice = TypeVar("Choice", str, int)
_UNREADABLE = object()  # stands for what lies below a value that has been refused already


class SpecError(ValueError):
    """The manifest is not an InferencePool that can run. `errors` has one `path: what is wrong; what is right` each."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = tuple(errors)


class FieldError(ValueError):
    """One value is wrong; the message says what is wrong; what would be right."""


@dataclass
class Problems:
    """Everything found to be wrong so far, in the order found."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, path: str, text: str) -> None:
        """Note that the field at `path` is wrong."""
        self.found.append((path, text))

    def is_clear(self, *paths: str) -> bool:
        """Tell whether the fields at `paths`, all above and all below them are free of problems."""
        return not any(_is_related(path, found) for path in paths for found, _ in self.found)

    def raise_if_any(self) -> None:
        """Raise SpecError when anything was wrong."""
        if self.found:
            raise SpecError([f"{path}: {text}" for path, text in self.found])


class Reader:
    """One mapping at `path`, its fields read by name."""

    def __init__(self, value: object, path: str, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self._known: list[str] = []
        self._fields: Mapping[object, object] = {}
        self.is_mapping = isinstance(value, Mapping)
        if isinstance(value, Mapping):
            self._fields = value
        elif value is not _UNREADABLE:
            problems.add(path or "manifest", f"{describe(value)}; give a mapping of fields")

    def required(self, key: str, read: Callable[[object], T], hint: str = "") -> T:
        """Read a field that must be there."""
        self._known.append(key)
        if key not in self._fields:
            self._missing(key, hint or "give it")
            return cast(T, None)
        return self._read(key, read)

    def optional(self, key: str, read: Callable[[object], T], default: T) -> T:
        """Read a field, `default` where it is absent."""
        self._known.append(key)
        return self._read(key, read) if key in self._fields else default

    def child(self, key: str, build: Callable[["Reader"], T]) -> T:
        """Build from the mapping under `key`; where it is absent, from an empty one, so that defaults apply."""
        self._known.append(key)
        return self._build(key, build, self._fields.get(key, {}) if self.is_mapping else _UNREADABLE)

    def optional_child(self, key: str, build: Callable[["Reader"], T]) -> T | None:
        """Build from the mapping under `key`, None where it is absent."""
        self._known.append(key)
        return self._build(key, build, self._fields[key]) if key in self._fields else None

    def plain(self, key: str, shape: Callable[[object, str, Problems], T], *, is_required: bool = False) -> T | None:
        """Read JSON that is handed on as it is, by its `shape` (`pool/shapes.py`); None where it is absent."""
        self._known.append(key)
        if key in self._fields:
            return shape(self._fields[key], self._at(key), self.problems)
        if is_required:
            self._missing(key, "give it")
        return None

    def required_list(self, key: str, read_item: Callable[[object], T], maximum: int) -> tuple[T, ...]:
        """Read a list of 1 to `maximum` different items."""
        value = self.required(key, _sequence(maximum), "give a list")
        items: list[T] = []
        for index, item in enumerate(value or ()):
            try:
                items.append(read_item(item))
                if items[-1] in items[:-1]:
                    raise FieldError(f"repeats {items[-1]!r:.80}; give each once")
            except FieldError as error:
                self.problems.add(f"{self._at(key)}[{index}]", str(error))
        return tuple(items)

    def optional_list(self, key: str, read_item: Callable[[object], T], maximum: int) -> tuple[T, ...]:
        """Read a list of at most `maximum` different items; where it is absent or empty, no items."""
        if self._fields.get(key, []) == []:
            self._known.append(key)
            return ()
        return self.required_list(key, read_item, maximum)

    def one_of(self, members: Mapping[str, Callable[["Reader"], T]]) -> T:
        """Build from the one member that must be there."""
        present = [key for key in members if key in self._fields]
        built = [value for key, build in members.items() if (value := self.optional_child(key, build)) is not None]
        if len(present) != 1 and self.is_mapping:
            what = f"has {' and '.join(present)}" if present else "has no member"
            self.problems.add(self.path, f"{what}; give exactly one of {', '.join(members)}")
        return built[0] if built else cast(T, None)

    def ignore(self, *keys: str) -> None:
        """Accept fields that are somebody else's."""
        self._known.extend(keys)

    def ignore_others(self) -> None:
        """Accept every field that is left."""
        self.ignore(*map(str, self._fields))

    def refuse_unknown(self) -> None:
        """Note every field that nobody asked for."""
        for key in self._fields:
            if not isinstance(key, str):
                self.problems.add(self._at(str(key)), "is no string; field names are strings")
            elif key not in self._known:
                self.problems.add(self._at(key), f"unknown field; {self._suggest(key)}")

    def _read(self, key: str, read: Callable[[object], T]) -> T:
        try:
            return read(self._fields[key])
        except FieldError as error:
            self.problems.add(self._at(key), str(error))
            return cast(T, None)

    def _build(self, key: str, build: Callable[["Reader"], T], value: object) -> T:
        reader = Reader(value, self._at(key), self.problems)
        built = build(reader)
        reader.refuse_unknown()
        return built

    def _missing(self, key: str, hint: str) -> None:
        if self.is_mapping:  # else that it is no mapping has been said already
            self.problems.add(self._at(key), f"is missing; {hint}")

    def _suggest(self, key: str) -> str:
        spellings = {known.lower(): known for known in self._known}
        near = difflib.get_close_matches(key.lower(), spellings, n=1, cutoff=0.7)
        return f'did you mean "{spellings[near[0]]}"?' if near else f"known here: {', '.join(self._known)}"

    def _at(self, key: str) -> str:
        return field_path(self.path, key)


def field_path(path: str, key: str) -> str:
    """Return the path of the field `key` of the mapping at `path`."""
    key = key if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", key) else _quoted(key)
    return f"{path}.{key}" if path else key


def integer(minimum: int, maximum: int) -> Callable[[object], int]:
    """Read a whole number from `minimum` to `maximum`."""
    right = f"give a whole number from {minimum} to {maximum}"

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
            raise FieldError(f"{describe(value)}; write {value} without quotes")
        if isinstance(value, bool) or not isinstance(value, int):
            raise FieldError(f"{describe(value)}; {right}")
        if not minimum <= value <= maximum:
            raise FieldError(f"{value} is out of bounds; {right}")
        return value

    return read


def count(minimum: int, maximum: int) -> Callable[[object], int]:
    """Read a whole number that, being a Kubernetes quantity, may also stand in quotes."""
    read_integer = integer(minimum, maximum)

    def read(value: object) -> int:
        is_digits = isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value)
        return read_integer(int(str(value)) if is_digits else value)

    return read


def boolean(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise FieldError(f"{describe(value)}; give true or false")
    return value


def choice(*values: Choice) -> Callable[[object], Choice]:
    """Read one of `values`, all strings or all whole numbers."""
    right = f"give {'one of ' if len(values) > 1 else ''}{', '.join(map(str, values))}"

    def read(value: object) -> Choice:
        for candidate in values:
            if type(value) is type(candidate) and value == candidate:
                return candidate
        raise FieldError(f"{describe(value)}; {right}")

    return read


def text(pattern: str, right: str, max_length: int) -> Callable[[object], str]:
    """Read a string that `pattern` matches in full; `right` says in words what would be right."""
    compiled = re.compile(pattern, re.ASCII)

    def read(value: object) -> str:
        if not isinstance(value, str):
            is_unquoted = isinstance(value, (int, float)) and not isinstance(value, bool)
            raise FieldError(
                f"{describe(value)}; " + (f'write it in quotes: "{value}"' if is_unquoted else f"give {right}")
            )
        if len(value) > max_length:
            raise FieldError(f"has {len(value)} characters; at most {max_length} are allowed")
        if not compiled.fullmatch(value):
            raise FieldError(f"{describe(value)}; give {right}")
        return value

    return read


def size(minimum: int, maximum: int) -> Callable[[object], int]:
    """Read a memory quantity of `minimum` to `maximum` bytes."""

    def read(value: object) -> int:
        try:
            num_bytes = parse_bytes(value)
        except QuantityError as error:
            raise FieldError(str(error)) from error
        if not minimum <= num_bytes <= maximum:
            raise FieldError(
                f"{value} is out of bounds; give a size from {format_bytes(minimum)} to {format_bytes(maximum)}"
            )
        return num_bytes

    return read


def millicores(value: object) -> int:
    """Read a cpu quantity above zero as thousandths of a core."""
    try:
        number = parse_millicores(value)
    except QuantityError as error:
        raise FieldError(str(error)) from error
    if number == 0:
        raise FieldError('0 is out of bounds; give at least "1m"')
    return number


def describe(value: object) -> str:
    """Say what `value` is, for the first half of an error."""
    match value:
        case None:
            return "has no value"
        case bool():
            return f"is a boolean ({str(value).lower()})"
        case int() | float():
            return f"is a number ({value!r:.40})"
        case str():
            return f"is the string {_quoted(value)}" if value else "is an empty string"
        case Mapping():
            return "is a mapping"
        case Sequence():
            return "is a list"
        case _:
            return f"is a {type(value).__name__}"


def _quoted(value: str) -> str:
    """Write a string on one line and in characters that any terminal takes."""
    return json.dumps(value[:60], ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _sequence(maximum: int) -> Callable[[object], Sequence[object]]:
    def read(value: object) -> Sequence[object]:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise FieldError(f"{describe(value)}; give a list")
        if not 1 <= len(value) <= maximum:
            raise FieldError(f"has {len(value)} entries; give 1 to {maximum}")
        return value

    return read


def _is_related(path: str, found: str) -> bool:
    return path == found or path.startswith(f"{found}.") or found.startswith(f"{path}.")
