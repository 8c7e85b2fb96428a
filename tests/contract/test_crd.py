"""The CRD, the parser and docs/reference.md know the same fields, with the same types, defaults and bounds.

`e2e/crd` holds CRD and parser to one verdict before a real API server; this needs none. For each field of the CRD the
parser is asked about values on and beyond each bound. Whatever else is wrong with such a manifest does not matter here:
looked at is only what the parser says of that field.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crds import reference
from crds.schema import Field, load, spec_fields, version
from pagoda_protocol.pool.quantities import parse_bytes
from pagoda_protocol.pool.spec import API_VERSION, KIND, SpecError, parse_pool
from tests.protocol.pool.manifests import changed, minimal

ROOT = version(load())["schema"]["openAPIV3Schema"]["properties"]
SPEC = Field(("spec",), ROOT["spec"], True)
FIELDS = spec_fields()
SIZE = re.compile(r"compareTo\(quantity\('(\w+)'\)\) (>=|<=) 0")
NOBODY = "zzzzzzzzzzzz"
# With a GPU memory is no matter of the KV cache, and with this block size nothing is of the block's.
BASE = minimal()
BASE["spec"]["engine"] |= {
    "resources": {"limits": {"memory": "64Mi", "nvidia.com/gpu": 1}},
    "kvCache": {"blockTokens": 0},
}


def placed(field: Field, value: Any) -> dict[str, Any]:
    """Return a manifest with `value` at `field`, in the first item of lists."""
    manifest = copy.deepcopy(BASE)
    holder: Any = manifest
    for key, following in zip(field.keys, (*field.keys[1:], None), strict=True):
        key = 0 if key == "[]" else "key" if key == "*" else key
        if following is None:
            child = value
        elif following == "[]":
            child = [None]
        elif key == 0:
            child = {NOBODY: 1}  # with an unknown field beside it nothing is said of how fields fit together
        else:
            child = holder.get(key, {})
        holder[key] = child
        holder = child
    return manifest


def said(field: Field, value: Any) -> list[str]:
    """What the parser says of `field`, and of nothing within or around it, when it holds `value`."""
    try:
        parse_pool(placed(field, value))
    except SpecError as error:
        path = field.path.replace("[]", "[0]").replace("*", "key")
        return [line for line in error.errors if line.startswith(f"{path}: ")]
    return []


def each(*fields: Field) -> pytest.MarkDecorator:
    """Run a test for each of these fields."""
    return pytest.mark.parametrize("field", fields, ids=[field.path for field in fields])


def of(*kinds: str) -> list[Field]:
    """The fields of these types."""
    return [field for field in FIELDS if kind_of(field) in kinds]


def kind_of(field: Field) -> str:
    schema = field.schema
    if schema.get("x-kubernetes-int-or-string"):
        return "size" if SIZE.search(rule_of(field)) and "Mi" in rule_of(field) else "quantity"
    if "enum" in schema:
        return "enum"
    return "map" if "additionalProperties" in schema else str(schema["type"])


def rule_of(field: Field) -> str:
    [rule] = field.schema["x-kubernetes-validations"]
    return str(rule["rule"])


def known_to_parser(field: Field) -> list[str] | None:
    """The fields that the parser knows in the mapping `field`, as it says when it refuses a name; None: it is none."""
    for line in of_parser(field, {NOBODY: 1}):
        if f"{NOBODY}: unknown field" in line:
            return line.split("known here: ")[1].split(", ")
    return None


def of_parser(field: Field, value: Any) -> Iterator[str]:
    try:
        parse_pool(placed(field, value))
    except SpecError as error:
        yield from error.errors


def test_the_kind_is_the_parsers() -> None:
    crd = load()
    assert f"{crd['spec']['group']}/{version(crd)['name']}" == API_VERSION
    assert crd["spec"]["names"]["kind"] == KIND


@each(SPEC, *(field for field in FIELDS if "properties" in field.schema))
def test_crd_and_parser_know_the_same_fields_of_each_mapping(field: Field) -> None:
    assert set(known_to_parser(field) or ()) == set(field.schema["properties"])


@each(*of("object", "map", "array"))
def test_what_is_a_mapping_or_a_list_for_one_is_so_for_the_other(field: Field) -> None:
    is_list = field.schema["type"] == "array"
    assert "give a list" in said(field, {})[0] if is_list else "give a mapping" in said(field, [])[0]


@each(*(field for field in FIELDS if field.schema.get("default", {}) != {}))
def test_a_default_of_the_crd_is_the_parsers(field: Field) -> None:
    base = minimal()
    if "managed" in field.keys:
        base["spec"]["cache"] = {"ram": {"size": "1Gi"}, "pool": {"managed": {"memoryPerReplica": "1Gi"}}}
    with_default = changed(" ".join(field.keys), field.schema["default"], base)
    assert with_default != base
    assert parse_pool(with_default) == parse_pool(base)


@each(*of("integer"))
def test_a_whole_number_has_the_parsers_bounds(field: Field) -> None:
    low, high = field.schema["minimum"], field.schema["maximum"]
    assert [bool(said(field, value)) for value in (low - 1, low, high, high + 1)] == [True, False, False, True]
    assert said(field, str(low))
    assert said(field, True)


@each(*of("enum"))
def test_an_enumeration_has_the_parsers_values(field: Field) -> None:
    assert not any(said(field, value) for value in field.schema["enum"])
    [refusal] = said(field, NOBODY)
    assert refusal.partition("; give ")[2].removeprefix("one of ").split(", ") == list(map(str, field.schema["enum"]))


@each(*of("boolean"))
def test_a_boolean_is_one_for_both(field: Field) -> None:
    assert not said(field, True)
    assert not said(field, False)
    assert said(field, "true")


@each(*of("size"))
def test_a_size_has_the_parsers_bounds(field: Field) -> None:
    low, high = (parse_bytes(bound) for bound, _ in SIZE.findall(rule_of(field)))
    assert [bool(said(field, value)) for value in (low - 1, low, high, high + 1)] == [True, False, False, True]
    assert [bool(said(field, value)) for value in (str(low - 1), str(low), "1Gi", "0.5Ti")] == [True, *[False] * 3]


def test_cores_and_gpus_have_the_parsers_bounds() -> None:
    cpu, gpu = (field for field in FIELDS if kind_of(field) == "quantity")
    assert SIZE.findall(rule_of(gpu)) == [("0", ">="), ("16", "<=")]
    assert [bool(said(gpu, value)) for value in (-1, 0, 16, 17)] == [True, False, False, True]
    assert [bool(said(gpu, value)) for value in ("-1", "0", "16", "17")] == [True, False, False, True]
    assert "isGreaterThan(quantity('0'))" in rule_of(cpu)
    assert SIZE.findall(rule_of(cpu)) == [("1M", "<=")]
    assert [bool(said(cpu, value)) for value in (0, "0", "1m", 10**6, 10**6 + 1)] == [True, True, False, False, True]


@each(*of("array"))
def test_a_list_has_the_parsers_bounds(field: Field) -> None:
    def has_right_length(length: int) -> bool:
        return not any(f"has {length} entries" in line for line in said(field, [f"x{i}" for i in range(length)]))

    least, most = field.schema.get("minItems", 0), field.schema["maxItems"]
    assert has_right_length(least)
    assert has_right_length(most)
    assert not has_right_length(most + 1)
    assert least == 0 or not has_right_length(least - 1)


@each(*of("map"))
def test_a_map_has_the_parsers_bound(field: Field) -> None:
    def of_length(length: int) -> list[str]:
        return said(field, {f"key{index}": "" for index in range(length)})

    most = field.schema["maxProperties"]
    assert not of_length(most)
    assert of_length(most + 1)


STRINGS = {
    (field.schema.get("pattern"), field.schema.get("minLength", 0), field.schema["maxLength"]): field
    for field in reversed(FIELDS)
    if kind_of(field) == "string" and "x-kubernetes-validations" not in field.schema
}


@each(*STRINGS.values())
def test_a_string_is_right_for_both_or_for_neither(field: Field) -> None:
    schema = field.schema
    pattern = re.compile(schema.get("pattern", "^.*$").removesuffix("$") + r"\Z", re.DOTALL | re.ASCII)
    matching = st.from_regex(pattern)
    near = st.tuples(matching, st.text("aZ0-_./:@+[ \n\x7f", max_size=2), matching).map("".join)
    longest = "a" * schema["maxLength"]

    @settings(max_examples=50)
    @given(st.text(max_size=5) | matching | near)
    @example("")
    @example(longest)
    @example(longest + "a")
    @example("/" + longest[1:])
    @example("/" + longest)
    def hold(value: str) -> None:
        has_right_length = schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
        is_right = has_right_length and pattern.match(value) is not None
        assert is_right == (not said(field, value)), said(field, value)

    hold()


@each(SPEC, *(field for field in FIELDS if "properties" in field.schema))
def test_of_an_empty_mapping_both_miss_the_same_fields(field: Field) -> None:
    path = field.path.replace("[]", "[0]")
    lines = [line for line in of_parser(field, {}) if "is missing" in line or "has no member" in line]
    missed = {
        key
        for key in field.schema["properties"]
        for line in lines
        if line.startswith((f"{path}.{key}.", f"{path}.{key}:"))
    }
    assert missed == set(field.schema.get("required", ()))


def test_every_field_has_a_description_that_ends_as_a_sentence() -> None:
    for field in [*FIELDS, *reference.fields(ROOT["status"], ("status",))]:
        assert re.search(r"[.)]$", field.schema["description"]), field.path


def test_the_reference_is_made_from_the_crd_as_it_stands() -> None:
    assert reference.FILE.read_text("utf-8") == reference.render(), "docs/reference.md is stale: run `make generate`"


def test_the_reference_names_every_field_with_its_default_and_its_bounds() -> None:
    lines = reference.FILE.read_text("utf-8").splitlines()
    for field in FIELDS:
        is_part = len(field.keys) == 2 and "properties" in field.schema
        if is_part or field.keys[-1] in ("[]", "*"):
            assert not is_part or f"## {field.path}" in lines
            continue
        [row] = [line for line in lines if line.startswith(f"| `{field.path}` |")]
        _, said_type, said_default, *_ = row.split(" | ")
        default = field.schema.get("default", {})
        assert default == {} or said_default == f"`{default}`"
        bounds = [field.schema.get(bound) for bound in ("minimum", "maximum", "maxItems", "maxProperties")]
        assert all(str(bound) in said_type for bound in bounds if bound is not None)
