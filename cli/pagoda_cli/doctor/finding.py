"""One broken precondition and the object that it is about."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_cli.doctor.codes import CODES, Severity

_MAX_TEXT = 256


@dataclass(frozen=True)
class Place:
    """The object that a finding is about; no name: the cluster as a whole."""

    kind: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        path = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {path}".rstrip()


@dataclass(frozen=True)
class Finding:
    """One broken precondition, with what was seen of it."""

    code: str
    place: Place
    seen: str
    """What was seen, quoting the cluster where it says it better."""

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return CODES[self.code].severity


CLUSTER = Place("Cluster")


def place_of(manifest: Mapping[str, Any]) -> Place:
    """Return the place of an object as the API server gives it."""
    metadata = manifest["metadata"]
    return Place(manifest["kind"], metadata["name"], metadata.get("namespace", ""))


def one_line(said: object) -> str:
    """Return what a pod or a container said as one short line; it may have said anything."""
    clean = "".join(character if character.isprintable() else " " for character in str(said)[:_MAX_TEXT])
    return clean or "no reason given"
