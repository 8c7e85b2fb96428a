"""NetworkPolicies: whether what must get through does, if the cluster enforces them."""

from collections.abc import Iterable
from dataclasses import dataclass

from pagoda_cli.doctor import names
from pagoda_cli.doctor.finding import CLUSTER, Finding, place_of
from pagoda_cli.doctor.installation import serves
from pagoda_cli.doctor.reach import BOTH, Endpoint, Flow, blockers
from pagoda_cli.doctor.snapshot import Manifest, Snapshot, find, labels_of, name_of, namespace_of

_DNS = Endpoint("kube-system", {"k8s-app": "kube-dns"})
_PORTS = ((names.ENGINE_PORT, "http"), (names.SIDECAR_PORT, "sidecar"))


@dataclass(frozen=True)
class _Way:
    """A flow that a pool needs, and what its end is called."""

    code: str
    what: str
    flow: Flow
    directions: tuple[str, ...] = BOTH


def check_network(snapshot: Snapshot) -> Iterable[Finding]:
    """Find policies that cut a pool's parts from one another. They are judged by workloads, so pods need not run."""
    if not snapshot.policies:
        return
    for pool in snapshot.pools:
        for way in _ways(snapshot, pool):
            for blocker in blockers(snapshot.policies, way.flow, way.directions):
                yield Finding(way.code, place_of(pool), f"{way.what}: nothing allows it in {blocker}")
    yield Finding("PGD064", CLUSTER, f"{len(snapshot.policies)} NetworkPolicies where pools and operators are")


def _ways(snapshot: Snapshot, pool: Manifest) -> Iterable[_Way]:
    engine, router = _endpoint(snapshot, pool, names.ENGINE), _endpoint(snapshot, pool, names.ROUTER)
    memcached = _endpoint(snapshot, pool, names.MEMCACHED)
    if engine is not None:
        yield from _ways_to_engine(snapshot, pool, engine, router)
    if engine is not None and memcached is not None:
        yield _Way("PGD062", "engine pods to memcached", Flow(engine, memcached, names.MEMCACHED_PORT, "memcached"))
    for part, source in ((names.ENGINE, engine), (names.ROUTER, router)):
        if source is not None:  # what restricts DNS itself is not ours to judge
            yield _Way("PGD063", f"{part} pods to DNS", Flow(source, _DNS, 53, "dns", "UDP"), ("Egress",))


def _ways_to_engine(snapshot: Snapshot, pool: Manifest, engine: Endpoint, router: Endpoint | None) -> Iterable[_Way]:
    operators = [operator for operator in snapshot.operators or () if serves(operator, namespace_of(pool))]
    for port, name in _PORTS:
        if router is not None:
            yield _Way("PGD060", f"router to engine pods, port {port}", Flow(router, engine, port, name))
        for operator in operators:
            flow = Flow(_of_template(snapshot, operator), engine, port, name)
            yield _Way("PGD061", f"operator to engine pods, port {port}", flow)


def _endpoint(snapshot: Snapshot, pool: Manifest, part: str) -> Endpoint | None:
    workloads = snapshot.stateful_sets if part == names.MEMCACHED else snapshot.deployments
    workload = find(workloads or (), namespace_of(pool), names.child(name_of(pool), part))
    return None if workload is None else _of_template(snapshot, workload)


def _of_template(snapshot: Snapshot, workload: Manifest) -> Endpoint:
    namespace = namespace_of(workload)
    labels = labels_of({"metadata": workload["spec"]["template"].get("metadata") or {}})
    return Endpoint(namespace, labels, snapshot.namespaces.get(namespace, {}))
