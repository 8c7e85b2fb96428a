"""Reads JSON that is handed on as it is: Kubernetes' own fields of a pod, checked for shape and not understood.

A *shape* takes a value, its path and the list of problems, notes every problem, and returns the value.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pagoda_protocol.pool.reader import FieldError, Problems, Reader, describe, field_path

Shape = Callable[[object, str, Problems], Any]
Rule = Callable[[Mapping[str, Any]], tuple[str, str] | None]
"""Looks at the fields that are there; returns the one that is wrong beside the others, and why."""


def scalar(read: Callable[[object], object]) -> Shape:
    """Take one value that `read` accepts, as it was written."""

    def check(value: object, path: str, problems: Problems) -> object:
        try:
            read(value)
        except FieldError as error:
            problems.add(path, str(error))
        return value

    return check


def fields(
    *,
    required: Mapping[str, Shape] | None = None,
    one_of: bool = False,
    rules: Sequence[Rule] = (),
    **optional: Shape,
) -> Shape:
    """Take a mapping of these fields and no other; with `one_of`, of exactly one of the optional ones."""

    def check(value: object, path: str, problems: Problems) -> dict[str, Any]:
        reader = Reader(value, path, problems)
        read = {key: reader.plain(key, shape, is_required=True) for key, shape in (required or {}).items()}
        read |= {key: reader.plain(key, shape) for key, shape in optional.items()}
        present = {key: item for key, item in read.items() if item is not None}
        chosen = [key for key in optional if key in present]
        if one_of and len(chosen) != 1 and reader.is_mapping:
            what = f"has {' and '.join(chosen)}" if chosen else "has no member"
            problems.add(path, f"{what}; give exactly one of {', '.join(optional)}")
        reader.refuse_unknown()
        if problems.is_clear(path):
            broken = [said for rule in rules if (said := rule(present)) is not None]
            for key, why in broken:
                problems.add(field_path(path, key), why)
        return present

    return check


def items(shape: Shape, maximum: int, *, minimum: int = 0, unique: Sequence[str] = ()) -> Shape:
    """Take a list of up to `maximum` such items, no two of which have the same in all fields of `unique`."""

    def check(value: object, path: str, problems: Problems) -> list[Any]:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            problems.add(path, f"{describe(value)}; give a list")
            return []
        if not minimum <= len(value) <= maximum:
            problems.add(path, f"has {len(value)} entries; give {minimum} to {maximum}")
            return []
        seen: list[object] = []
        for index, item in enumerate(value):
            key = [item.get(name) for name in unique] if unique and isinstance(item, Mapping) else [None]
            if None not in key and key in seen:
                problems.add(f"{path}[{index}].{unique[0]}", f"repeats {key[0]!r:.80}; give each once")
            seen.append(key)
        return [shape(item, f"{path}[{index}]", problems) for index, item in enumerate(value)]

    return check


def entries(read_key: Callable[[object], str], read_value: Callable[[object], str], maximum: int) -> Shape:
    """Take a mapping of up to `maximum` strings by name."""

    def check(value: object, path: str, problems: Problems) -> dict[str, str]:
        if not isinstance(value, Mapping):
            problems.add(path, f"{describe(value)}; give a mapping of strings")
            return {}
        if len(value) > maximum:
            problems.add(path, f"has {len(value)} entries; give at most {maximum}")
        for key, item in value.items():
            try:
                read_key(key)
            except FieldError as error:
                problems.add(path, f"has a key that {error}")
            scalar(read_value)(item, field_path(path, str(key)), problems)
        return dict(value)

    return check
