"""The alerts and the dashboard ask for what programs publish, and each alert says what to do."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.charts.instruments import published

FILES = Path(__file__).parents[2] / "charts" / "pagoda" / "files"
ALERTS = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
DASHBOARD = json.loads((FILES / "dashboard.json").read_text("utf-8"))
QUERIES = {
    f"{panel['title']} {target['refId']}": (target["expr"], target["legendFormat"])
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
# What Prometheus and the chart's monitors add to every series.
ADDED = {"namespace", "pool", "part", "pod", "job"}
SERIES = re.compile(r"\b(?:pagoda_|vllm:)\w+")


def series_and_labels(expression: str) -> tuple[set[str], set[str]]:
    """Return the series that an expression asks for, and every label it names."""
    selectors = re.findall(r"\{([^}]*)\}", expression)
    labels = {name for selector in selectors for name in re.findall(r"(\w+)\s*[=!]", selector)}
    labels |= {name for group in re.findall(r"\bby \(([^)]*)\)", expression) for name in re.split(r",\s*", group)}
    return set(SERIES.findall(expression)), labels


def unknown_labels(expression: str) -> set[str]:
    series, labels = series_and_labels(expression)
    known = ADDED.union(*(published().get(name, frozenset()) for name in series))
    # A label that both a scrape and a program give is the program's under this name.
    known |= {f"exported_{name}" for name in known & ADDED}
    return labels - known


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_asks_for_series_that_a_program_publishes_by_labels_that_they_have(alert: dict) -> None:
    series, _ = series_and_labels(alert["expr"])
    assert series
    assert series <= published().keys()
    assert unknown_labels(alert["expr"]) == set()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_speaks_of_labels_that_its_expression_leaves(alert: dict) -> None:
    _, labels = series_and_labels(alert["expr"])
    spoken = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    assert spoken <= labels
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    runbooks = {path.stem for path in (FILES / "runbooks").glob("*.md")}
    assert runbooks == {alert["alert"] for alert in ALERTS}
    for name in runbooks:
        text = (FILES / "runbooks" / f"{name}.md").read_text("utf-8")
        assert text.startswith(f"# {name}\n")
        assert "\n1. " in text, f"{name} says nothing to do"


def test_the_page_about_monitoring_lists_every_alert_with_its_severity() -> None:
    page = (FILES.parents[2] / "docs" / "monitoring.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| (Pagoda\w+) \| (\w+) \|", page, re.MULTILINE))
    assert listed == {alert["alert"]: alert["labels"]["severity"] for alert in ALERTS}


def test_a_runbook_names_no_alert_and_no_command_that_is_not_there() -> None:
    known = {alert["alert"] for alert in ALERTS}
    for path in (FILES / "runbooks").glob("*.md"):
        text = path.read_text("utf-8")
        assert set(re.findall(r"\bPagoda[A-Z]\w+", text)) <= known
        assert {command.split()[0] for command in re.findall(r"`(kubectl|pagoda|helm) ", text)} <= {
            "kubectl", "pagoda", "helm"
        }  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_a_panel_asks_for_series_that_a_program_publishes_by_labels_that_they_have(name: str) -> None:
    expression, legend = QUERIES[name]
    series, labels = series_and_labels(expression)
    assert series
    assert series <= published().keys()
    assert unknown_labels(expression) == set()
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= labels


def test_panels_lie_side_by_side_and_not_over_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_variables_of_the_dashboard_ask_for_a_series_that_routers_publish() -> None:
    for variable in DASHBOARD["templating"]["list"][1:]:
        assert set(SERIES.findall(variable["query"])) <= published().keys()
