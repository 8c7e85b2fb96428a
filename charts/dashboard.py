"""The Grafana dashboard, as data: which panel shows what. `charts/generate.py` writes it into the chart.

Metrics are named by the constants of their programs, so that a renamed one cannot be left behind here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda_protocol import metrics as names

_POOL = 'namespace="$namespace",pool="$pool"'
_WINDOW = "$__rate_interval"
_WIDTH = 24
_PANEL_WIDTH, _PANEL_HEIGHT = 8, 7


@dataclass(frozen=True)
class Line:
    """One query and how its series are called in the legend."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One graph over time."""

    title: str
    unit: str
    what: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, by: str, more: str = "") -> str:
    """Return the query for a counter's rate of a pool, summed by labels."""
    return f"sum by ({by}) (rate({metric}_total{{{_POOL}{more}}}[{_WINDOW}]))"


def quantiles(metric: str, chosen: str = f"{{{_POOL}}}") -> tuple[Line, ...]:
    """Return the queries for the quantiles of a histogram, of a pool unless `chosen` says otherwise."""
    buckets = f"sum by (le) (rate({metric}_bucket{chosen}[{_WINDOW}]))"
    return tuple(Line(f"histogram_quantile({part}, {buckets})", f"p{part * 100:.0f}") for part in (0.5, 0.95, 0.99))


def gauge(metric: str, fold: str, by: str, more: str = "") -> str:
    """Return the query for a gauge of a pool, folded by labels."""
    return f"{fold} by ({by}) ({metric}{{{_POOL}{more}}})"


ROWS = (
    Row(
        "Requests",
        (
            Panel(
                "Requests by status", "reqps", "What clients got from the routers; 499: they left before the end.",
                (Line(rate(names.ROUTER_REQUESTS, "code"), "{{code}}"),),
            ),
            Panel(
                "Time to first token", "s", "From arrival at the engine.",
                quantiles(names.TIME_TO_FIRST_TOKEN),
            ),
            Panel(
                "Time between tokens", "s", "Of one request.",
                quantiles(names.INTER_TOKEN),
            ),
            Panel(
                "Tokens generated", "short", "A second, by pod.",
                (Line(rate(names.GENERATION_TOKENS, "pod"), "{{pod}}"),),
            ),
            Panel(
                "Running and waiting", "short", "Requests in the batch, and those that wait for a place in it.",
                (
                    Line(gauge(names.NUM_REQUESTS_RUNNING, "sum", "pool"), "running"),
                    Line(gauge(names.NUM_REQUESTS_WAITING, "sum", "pool"), "waiting"),
                ),
            ),
            Panel(
                "Retries and broken streams", "reqps", "Second tries by reason, and answers lost with their pod.",
                (
                    Line(rate(names.ROUTER_RETRIES, "reason"), "retry: {{reason}}"),
                    Line(rate(names.ROUTER_STREAMS_BROKEN, "pool"), "broken"),
                ),
            ),
        ),
    ),
    Row(
        "Where prompt tokens come from",
        (
            Panel(
                "Prompt tokens by source", "short", "A second. What is not `compute` was reused.",
                (Line(rate(names.PROMPT_TOKENS, "source"), "{{source}}"),),
            ),
            Panel(
                "Hit ratio and its ceiling", "percentunit",
                "Of the last half to whole hour. A ceiling far above says that more RAM, disk or pool would help.",
                (
                    Line(gauge(names.HIT_RATIO, "avg", "pool"), "hit ratio"),
                    Line(gauge(names.HIT_CEILING_RATIO, "avg", "pool"), "ceiling"),
                ),
            ),
            Panel(
                "Device pages in use", "percentunit", "Share of the device's pages that running requests hold.",
                (Line(gauge(names.KV_CACHE_USAGE, "max", "pod"), "{{pod}}"),),
            ),
            Panel(
                "Preempted and parked", "short", "Requests short of pages, and idle sessions moved below. A second.",
                (
                    Line(rate(names.PREEMPTIONS, "pool"), "preempted"),
                    Line(rate(names.PARKED_SESSIONS, "pool"), "parked"),
                ),
            ),
            Panel(
                "Loads not made", "short", "Loads skipped or ended short, by reason. A second.",
                (Line(rate(names.TIER_LOADS_SKIPPED, "reason"), "{{reason}}"),),
            ),
            Panel(
                "Stores", "short", "Blocks offered to the tiers, by outcome. A second.",
                (Line(rate(names.TIER_STORES, "outcome"), "{{outcome}}"),),
            ),
        ),
    ),
    Row(
        "RAM, disk and pool",
        (
            Panel(
                "Size of the tiers", "bytes", "Tables included, all pods together.",
                (Line(gauge(names.TIER_BYTES, "sum", "tier"), "{{tier}}"),),
            ),
            Panel(
                "Lookups", "short", "Blocks looked up, by tier and result. A second.",
                (Line(rate(names.TIER_LOOKUPS, "tier, result"), "{{tier}} {{result}}"),),
            ),
            Panel(
                "Evictions", "short", "Blocks that made room for others. A second.",
                (Line(rate(names.TIER_EVICTIONS, "tier"), "{{tier}}"),),
            ),
            Panel(
                "Pool operations", "short", "Records, by operation and outcome. A second.",
                (Line(rate(names.POOL_OPERATIONS, "operation, outcome"), "{{operation}} {{outcome}}"),),
            ),
            Panel(
                "Pool nodes", "bool_on_off", "Whether any pod reaches the node.",
                (Line(gauge(names.POOL_NODE_UP, "max", "node"), "{{node}}"),),
            ),
            Panel(
                "What went wrong", "short", "Corrupt records dropped, cache workers started anew. A second.",
                (
                    Line(rate(names.INTEGRITY_FAILURES, "tier, reason"), "{{tier}} {{reason}}"),
                    Line(rate(names.WORKER_RESTARTS, "pod"), "worker of {{pod}}"),
                ),
            ),
        ),
    ),
    Row(
        "Routing",
        (
            Panel(
                "Decisions", "reqps", "By reason; `prefix` found the pod that had the prompt's beginning.",
                (Line(rate(names.ROUTER_DECISIONS, "reason"), "{{reason}}"),),
            ),
            Panel(
                "Outstanding work", "s", "What the routers expect each pod to need for what it has.",
                (Line(gauge(names.ROUTER_OUTSTANDING_SECONDS, "sum", "exported_pod"), "{{exported_pod}}"),),
            ),
            Panel(
                "Hints known", "short", "Prefix digests that routers know of a pod.",
                (Line(gauge(names.ROUTER_HINT_ROWS, "avg", "exported_pod"), "{{exported_pod}}"),),
            ),
        ),
    ),
    Row(
        "Operator",
        (
            Panel(
                "Conditions of this pool", "short", "1 true, 0 false, -1 unknown.",
                (Line(gauge(names.POOL_CONDITION, "max", "type"), "{{type}}"),),
            ),
            Panel(
                "Reconciles", "short", "Of all pools, by result. A second.",
                (Line(f"sum by (result) (rate({names.OPERATOR_RECONCILES}_total[{_WINDOW}]))", "{{result}}"),),
            ),
            Panel(
                "Time of a reconcile", "s", "Of all pools.",
                quantiles(names.OPERATOR_RECONCILE_SECONDS, ""),
            ),
            Panel(
                "Pools that wait", "short", "For a reconcile, or for their pods' annotations to be written.",
                (
                    Line(f"max({names.OPERATOR_QUEUE_DEPTH})", "reconcile"),
                    Line(f"max({names.OPERATOR_ANNOTATIONS_WAITING})", "pods to annotate"),
                ),
            ),
            Panel(
                "Calls of the API server", "reqps", "By verb and status.",
                (
                    Line(
                        f"sum by (verb, code) (rate({names.OPERATOR_API_CALLS}_total[{_WINDOW}]))", "{{verb}} {{code}}"
                    ),
                ),
            ),
            Panel(
                "Looks at pods", "short", "Containers asked for their state, by outcome. A second.",
                (
                    Line(
                        f"sum by (container, outcome) (rate({names.OPERATOR_SCRAPES}_total[{_WINDOW}]))",
                        "{{container}} {{outcome}}",
                    ),
                ),
            ),
            Panel(
                "Annotations written", "short", "Routing annotations of pods, by outcome; 20 a second at most.",
                (Line(f"sum by (outcome) (rate({names.OPERATOR_ANNOTATION_WRITES}_total[{_WINDOW}]))", "{{outcome}}"),),
            ),
        ),
    ),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana's JSON model."""
    return {
        "uid": "pagoda",
        "title": "Pagoda pools",
        "tags": ["pagoda"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _laid_out(ROWS),
    }


def _variables() -> list[dict[str, Any]]:
    known = names.ROUTER_REQUESTS + "_total"
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    namespace = _query_variable("namespace", "Namespace", f"label_values({known}, namespace)")
    pool = _query_variable("pool", "Pool", f'label_values({known}{{namespace="$namespace"}}, pool)')
    return [source, namespace, pool]


def _query_variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "query": query, "definition": query, "refresh": 2, "sort": 1,
        "datasource": _DATASOURCE,
    }  # fmt: skip


_DATASOURCE = {"type": "prometheus", "uid": "${source}"}


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1},
            }
        )
        top += 1
        for index, panel in enumerate(row.panels):
            left = index * _PANEL_WIDTH % _WIDTH
            panels.append(_graph(panel, len(panels) + 1, left, top + index * _PANEL_WIDTH // _WIDTH * _PANEL_HEIGHT))
        top += -(-len(row.panels) * _PANEL_WIDTH // _WIDTH) * _PANEL_HEIGHT
    return panels


def _graph(panel: Panel, number: int, left: int, top: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.what,
        "datasource": _DATASOURCE,
        "gridPos": {"x": left, "y": top, "w": _PANEL_WIDTH, "h": _PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": line.expression, "legendFormat": line.legend}
            for index, line in enumerate(panel.lines)
        ],
    }
