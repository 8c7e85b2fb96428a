"""Reads a manifest file into an InferencePool, and says what of it has no effect on one machine.

YAML that would silently mean something else than it says is refused: keys given twice, several documents.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pagoda_cli.problems import RefusedError
from pagoda_protocol.pool.kubernetes_only import KUBERNETES_ONLY
from pagoda_protocol.pool.spec import InferencePool, SpecError, parse_pool

MAX_MANIFEST_BYTES = 1024**2


def read_manifest(path: Path) -> tuple[InferencePool, list[str]]:
    """Read and parse the file at `path`; return the pool and a line for each field that one machine cannot give.

    Raises:
        RefusedError: it cannot be read, is no YAML mapping, or is no InferencePool.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise RefusedError([f"{path}: cannot be read: {error.strerror}; give the path of a manifest"]) from error
    if len(content) > MAX_MANIFEST_BYTES:
        raise RefusedError([f"{path}: is larger than 1 MiB; give the manifest of one InferencePool"])
    mapping = parse_yaml(content, str(path))
    try:
        pool = parse_pool(mapping)
    except SpecError as error:
        raise RefusedError(error.errors) from error
    assert isinstance(mapping, dict), "the parser accepts nothing else"
    return pool, [*bookkeeping_without_effect(mapping), *fields_without_effect(pool)]


def parse_yaml(content: bytes, name: str) -> object:
    """Return the one document in `content`.

    Raises:
        RefusedError: it is no YAML, or holds none or several documents, or a key twice.
    """
    try:
        documents = [document for document in yaml.load_all(content, _StrictLoader) if document is not None]
    except yaml.YAMLError as error:
        raise RefusedError([f"{name}{_where(error)}"]) from error
    except (ValueError, RecursionError, UnicodeError) as error:  # of a date that is none; of brackets without end
        raise RefusedError([f"{name}: is not YAML that can be read: {error}; write plain mappings"]) from error
    if len(documents) != 1:
        what = f"has {len(documents)} documents" if documents else "is empty"
        raise RefusedError([f"{name}: {what}; give one InferencePool"])
    return documents[0]


def fields_without_effect(pool: InferencePool) -> list[str]:
    """Return a line for each field that `pool` asks for and one machine cannot give."""
    return [f"{entry.path}: without effect here: {entry.why}" for entry in KUBERNETES_ONLY if entry.is_set(pool)]


def bookkeeping_without_effect(manifest: Mapping[str, Any]) -> list[str]:
    """Return a line for each field by which Kubernetes keeps its objects: all of metadata but the name, and status."""
    paths = [f"metadata.{key}" for key in manifest["metadata"] if key != "name"]
    paths += ["status"] if "status" in manifest else []
    return [f"{path}: without effect here: Kubernetes keeps its objects by it" for path in paths]


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, but a key that is there twice is an error and not a silent change of the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                    raise yaml.constructor.ConstructorError(
                        None, None, f'the key "{key.value:.60}" is there twice; keep one', key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _where(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where, what = f":{mark.line + 1}:{mark.column + 1}", error.problem or error.context or "unreadable"
        if isinstance(error, yaml.constructor.ConstructorError):
            return f"{where}: {what}"
        return f"{where}: is not YAML: {what}; look at the indentation, colons and quotes up to here"
    return f": is not YAML: {' '.join(str(error).split())}"
