"""Random specs by the schema of the CRD: right in most places, and anything at all in one of them."""

import copy
import re
from typing import Any

from hypothesis import strategies as st

from crds.schema import Schema

_UNITS = ["", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "m", "u", "n", "e3", "E-1", "e9", "b"]
_quantities = st.builds(
    lambda number, fraction, unit: f"{number}{fraction}{unit}",
    st.sampled_from(["0", "1", "2", "16", "63", "64", "500", "1000", "1024", "1025", "017", "+1", "-1", ""]),
    st.sampled_from(["", "", "", ".5", ".25", "."]),
    st.sampled_from(_UNITS),
)
_cores = st.sampled_from([1, "2", "500m", "0.1", ".5", "1e3", "1E-3", "1000000"])
_keys = st.from_regex(r"([a-z]{1,3}\.?[a-z]/)?[A-Za-z][-_.]?[a-z0-9]", fullmatch=True)
_texts = st.text("aB0-_./:@+\n ~é[]\x7f", max_size=8)
_anything = st.recursive(
    st.booleans() | st.integers(-(2**31), 2**40) | _texts | _quantities,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_texts, inner, max_size=2),
    max_leaves=4,
)
_BOUNDS = re.compile("give a size from (.*) to (.*)")
_ONE_OF = "give exactly one of "
_GONE = object()


def specs(schema: Schema) -> st.SearchStrategy[Any]:
    """Return specs by `schema`, each with one place changed to anything or taken away."""
    return st.tuples(_by(schema), st.integers(0, 10**6), _anything | st.just(_GONE)).map(_change)


def right_specs(schema: Schema) -> st.SearchStrategy[Any]:
    """Return specs by `schema`, which are mostly right: a rule about several fields may refuse them."""
    return _by(schema)


def _by(schema: Schema) -> st.SearchStrategy[Any]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return _quantity(schema)
    match schema["type"]:
        case "object":
            return _object(schema)
        case "array":
            return _list(schema)
        case "integer":
            low, high = schema["minimum"], schema["maximum"]
            return st.sampled_from([low, high, low + 1]) | st.integers(low, high)
        case "boolean":
            return st.booleans()
        case _:
            return _string(schema)


def _object(schema: Schema) -> st.SearchStrategy[Any]:
    if "additionalProperties" in schema:
        return st.dictionaries(_keys, _by(schema["additionalProperties"]), max_size=2)
    required = schema.get("required", ())
    children = {key: _by(child) for key, child in schema["properties"].items()}
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    members = next((rule.removeprefix(_ONE_OF).split(", ") for rule in rules if rule.startswith(_ONE_OF)), [])
    fixed = {key: children[key] for key in required}
    optional = {key: child for key, child in children.items() if key not in required and key not in members}
    plain = st.fixed_dictionaries(fixed, optional=optional)
    if not members:
        return plain
    union = st.sampled_from(members).flatmap(lambda key: st.fixed_dictionaries({key: children[key]}))
    return st.tuples(plain, union).map(lambda parts: parts[0] | parts[1])


def _list(schema: Schema) -> st.SearchStrategy[list[Any]]:
    keys = schema.get("x-kubernetes-list-map-keys", ())
    is_unique = "x-kubernetes-list-type" in schema
    unique_by = (lambda item: tuple(item[key] for key in keys) if keys else item) if is_unique else None
    return st.lists(_by(schema["items"]), min_size=schema.get("minItems", 0), max_size=3, unique_by=unique_by)


def _quantity(schema: Schema) -> st.SearchStrategy[Any]:
    [rule] = schema["x-kubernetes-validations"]
    bounds = _BOUNDS.match(rule["message"])
    if bounds is None:
        return st.integers(0, 16) | st.integers(0, 16).map(str) if "16" in rule["message"] else _cores
    return st.sampled_from([*bounds.groups(), "8Gi", 2**33, "1e10", "0.5Ti", ".5Ti", "9000M", "1E12"])


def _string(schema: Schema) -> st.SearchStrategy[str]:
    longest = schema["maxLength"]
    if longest == 63 and schema.get("minLength"):  # the names of volumes and of their mounts have to meet
        return st.sampled_from(["a", "b", "c-1"])
    if "pattern" not in schema:
        return st.text(st.characters(exclude_categories=["Cs"]), min_size=schema.get("minLength", 0), max_size=8)
    pattern = schema["pattern"].removesuffix("$") + r"\Z"
    return st.from_regex(pattern).filter(lambda text: len(text) <= longest)


def _change(parts: tuple[Any, int, Any]) -> Any:
    spec, number, value = parts
    spec = copy.deepcopy(spec)
    # More than any KV cache, and what disk and pool need, so that the change decides.
    spec["engine"]["resources"]["limits"]["memory"] = "1Pi"
    spec.setdefault("cache", {}).setdefault("ram", {"size": "1Gi"})
    places = list(_places(spec))
    holder, key = places[number * 7919 % len(places)]  # small numbers are drawn most often: spread them
    if value is not _GONE:
        holder[key] = value
    else:
        del holder[key]
    return spec


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in pairs:
        yield value, key
        yield from _places(child)
