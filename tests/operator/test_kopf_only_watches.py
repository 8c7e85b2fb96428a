"""kopf may tell us of events and ask us for credentials; whatever else it offers writes to users' objects."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "operator" / "pagoda_operator"
ALLOWED_TRIGGERS = {"event", "login", "index"}
ALLOWED_NAMES = {"on", "index", "OperatorRegistry", "OperatorSettings", "ConnectionInfo", "spawn_tasks"}


def uses_of_kopf(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that begins with `kopf`, without that, as in `on.event`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kopf":
            yield f"from {node.module} import …"
        if isinstance(node, ast.Import) and any(name.name.startswith("kopf.") or name.asname for name in node.names):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "kopf")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kopf":
            yield node.attr
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "kopf.on":
            yield f"on.{node.attr}"


def forbidden_in(source: str) -> list[str]:
    uses = uses_of_kopf(ast.parse(source))
    return [use for use in uses if use not in ALLOWED_NAMES | {f"on.{trigger}" for trigger in ALLOWED_TRIGGERS}]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_of_kopf_is_used_that_writes(path: Path) -> None:
    assert forbidden_in(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "@kopf.on.create('pods')\ndef f(**_): ...",
        "@kopf.on.update('pods')\ndef f(**_): ...",
        "@kopf.on.delete('pods')\ndef f(**_): ...",
        "@kopf.on.resume('pods')\ndef f(**_): ...",
        "@kopf.on.field('pods', field='spec')\ndef f(**_): ...",
        "@kopf.on.timer('pods', interval=1)\ndef f(**_): ...",
        "@kopf.timer('pods', interval=1)\ndef f(**_): ...",
        "@kopf.daemon('pods')\ndef f(**_): ...",
        "kopf.on.daemon('pods')",
        "from kopf import on",
        "import kopf.on",
        "import kopf as other",
        "kopf.event(pod, type='Normal', reason='a', message='b')",
        "kopf.adopt(children)",
    ],
)
def test_each_way_around_that_is_seen(source: str) -> None:
    assert forbidden_in(source)
