"""Make what the charts hold a second time: `make generate` writes it, a test says when it is stale.

    crds/*.yaml            ─► pagoda-crds/templates/*.yaml        always, with the keep policy
                           ─► pagoda/templates/crds.yaml          with `crds.install`
    pagoda/values.yaml     ─► pagoda/README.md, the table of values
    charts/dashboard.py    ─► pagoda/files/dashboard.json

The CRD is copied as text, never parsed and written anew: Helm's YAML turns large whole numbers into floats.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHARTS = Path(__file__).resolve().parent
sys.path.insert(0, str(CHARTS.parent))

from charts.dashboard import dashboard  # noqa: E402 - found by the line above when run as a program

CRDS = CHARTS.parent / "crds"
CHART = CHARTS / "pagoda"
MARK = "<!-- make generate: the values -->"

_KEEP = """\
  annotations:
    # Removing the kind would remove every pool. Helm never does.
    helm.sh/resource-policy: keep
"""
_LABELS = """\
  labels:
    app.kubernetes.io/name: pagoda-crds
    app.kubernetes.io/managed-by: {{ .Release.Service }}
    app.kubernetes.io/part-of: pagoda
"""


@dataclass(frozen=True)
class Value:
    """One value of the chart: a leaf of values.yaml, or a map that is handed on whole."""

    path: str
    documentation: str
    default: Any


def main() -> int:
    """Write every generated file that differs."""
    for path, text in outputs().items():
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {path.relative_to(CHARTS.parent)}\n")
    return 0


def outputs() -> dict[Path, str]:
    """Return the text of every generated file."""
    files = {CHARTS / "pagoda-crds" / "templates" / path.name: templated(path) for path in sorted(CRDS.glob("*.yaml"))}
    wrapped = "---\n".join(files.values())
    files[CHART / "templates" / "crds.yaml"] = f"{{{{- if .Values.crds.install }}}}\n{wrapped}{{{{- end }}}}\n"
    files[CHART / "README.md"] = readme()
    files[CHART / "files" / "dashboard.json"] = json.dumps(dashboard(), indent=2) + "\n"
    return files


def templated(path: Path) -> str:
    """Return a CRD as a template: with the keep policy and the chart's labels, and nothing that Helm would evaluate."""
    text = path.read_text("utf-8").replace("{{", '{{ "{{" }}')
    head = re.search(r"^metadata:\n", text, re.MULTILINE)
    if head is None or re.search(r"^  (annotations|labels):", text, re.MULTILINE):
        raise ValueError(f"{path.name}: expected metadata without annotations and labels, which the charts add")
    return text[: head.end()] + _KEEP + _LABELS + text[head.end() :]


def readme() -> str:
    """Return the chart's README with the table of values made anew."""
    text = (CHART / "README.md").read_text("utf-8")
    before, mark, _ = text.partition(MARK)
    if not mark:
        raise ValueError(f"README.md of the chart has lost its line {MARK!r}")
    rows = [f"| `{value.path}` | {_code(value.default)} | {value.documentation} |" for value in values()]
    return "\n".join([before + MARK, "", "| value | default | what it says |", "| --- | --- | --- |", *rows, ""])


def values() -> list[Value]:
    """Return every value in the order of the file; one without a comment is an error."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    found: list[Value] = []
    for path, comment in _commented_keys((CHART / "values.yaml").read_text("utf-8")):
        if any(path.startswith(f"{value.path}.") for value in found):
            continue  # inside a value that is handed on whole
        default = defaults
        for key in path.split("."):
            default = default[key]
        if comment:
            found.append(Value(path, comment, default))
        elif not isinstance(default, dict):
            raise ValueError(f"values.yaml: {path} has no comment above it")
    return found


def _commented_keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each key with the comment right above it; a blank line parts a comment from what follows."""
    parents: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        key = re.match(r"( *)([A-Za-z_][\w.]*):(?: |$)", line)
        if line.lstrip().startswith("# "):
            comment.append(line.strip()[2:])
        elif key is None:
            comment = []
        else:
            depth = len(key[1])
            parents = [*[(deep, name) for deep, name in parents if deep < depth], (depth, key[2])]
            yield ".".join(name for _, name in parents), " ".join(comment)
            comment = []


def _code(default: Any) -> str:
    if isinstance(default, dict) and default:
        return "see values.yaml" if len(json.dumps(default)) > 60 else f"`{json.dumps(default)}`"
    return f"`{json.dumps(default)}`"


if __name__ == "__main__":
    sys.exit(main())
