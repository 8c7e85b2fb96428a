"""What was found, for a person and for a program."""

import itertools
import json
import textwrap
from collections import Counter
from dataclasses import dataclass

from pagoda_cli.doctor.codes import CODES, Severity
from pagoda_cli.doctor.finding import CLUSTER, Finding

JSON_VERSION = 1
STATUS_UNREAD = 3
_WIDTH = 110


@dataclass(frozen=True)
class Report:
    """All findings about one cluster."""

    cluster: str
    """The API server's address, empty if none is known."""
    namespace: str | None
    """What was looked at; None: everything."""
    checked_at: str
    num_pools: int
    findings: tuple[Finding, ...]

    @property
    def status(self) -> int:
        """The exit status: 0 fine or good to know, 1 warnings, 2 errors, 3 the cluster could not be read."""
        if any(finding.code == "PGD099" for finding in self.findings):
            return STATUS_UNREAD
        return int(max((finding.severity for finding in self.findings), default=Severity.INFO))


def unread_report(cluster: str, namespace: str | None, checked_at: str, reason: str) -> Report:
    """Return the report about a cluster of which nothing could be read."""
    return Report(cluster, namespace, checked_at, 0, (Finding("PGD099", CLUSTER, reason),))


def as_text(report: Report) -> str:
    """Write a report for a person: by code, what was seen, what it means and what to do."""
    paragraphs = [_paragraph(code, list(found)) for code, found in itertools.groupby(report.findings, _code_of)]
    return "\n\n".join([*paragraphs, _summary(report)])


def _paragraph(name: str, findings: list[Finding]) -> str:
    code = CODES[name]
    lines = [f"{code.severity.name:7} {name} {code.title}"]
    for finding in findings:
        lines += _indented("  - ", f"{finding.place}: {finding.seen}")
    return "\n".join([*lines, *_indented("  means: ", code.meaning), *_indented("  to do: ", code.remedy)])


def _code_of(finding: Finding) -> str:
    return finding.code


def as_json(report: Report) -> str:
    """Write a report for a program: one object whose members only grow while `version` stays."""
    document = {
        "version": JSON_VERSION,
        "checkedAt": report.checked_at,
        "cluster": report.cluster,
        "namespace": report.namespace,
        "pools": report.num_pools,
        "status": report.status,
        "findings": [_as_object(finding) for finding in report.findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _as_object(finding: Finding) -> dict[str, object]:
    code = CODES[finding.code]
    place = {"kind": finding.place.kind, "namespace": finding.place.namespace, "name": finding.place.name}
    return {
        "code": finding.code,
        "severity": finding.severity.name.lower(),
        "title": code.title,
        "object": place,
        "seen": finding.seen,
        "meaning": code.meaning,
        "remedy": code.remedy,
    }


def _indented(label: str, text: str) -> list[str]:
    return textwrap.wrap(f"{label}{text}", _WIDTH, subsequent_indent=" " * len(label), break_on_hyphens=False)


def _counted(severity: Severity, count: int) -> str:
    plural = "s" if count > 1 and severity is not Severity.INFO else ""
    return f"{count} {severity.name.lower()}{plural}"


def _summary(report: Report) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    where = "all namespaces" if report.namespace is None else f"namespace {report.namespace}"
    what = (
        f"{report.num_pools} pool{'' if report.num_pools == 1 else 's'} in {where} of {report.cluster or 'no cluster'}"
    )
    if not report.findings:
        return f"{what}: nothing is broken"
    parts = [_counted(severity, counts[severity]) for severity in reversed(Severity) if counts[severity]]
    return f"{what}: {', '.join(parts)}"
