"""Reads a cluster into a Snapshot: what the checks need and no more; of Secrets the keys alone."""

import datetime
import json
import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from pagoda_cli.doctor import names
from pagoda_cli.doctor.installation import account_of, in_words, lease_of, needed_rights, pull_secrets
from pagoda_cli.doctor.reading import CallError, Reading, quoted
from pagoda_cli.doctor.secrets import needed_secrets
from pagoda_cli.doctor.snapshot import (
    Answer,
    Manifest,
    Manifests,
    Review,
    Snapshot,
    Unread,
    name_of,
    namespace_of,
    spec_of,
)
from pagoda_protocol.pool.spec import InferencePool

POD_SECONDS = 3.0
_NUM_ASKING = 16
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_POOLS = f"/apis/{names.GROUP}/{names.VERSION}"


def collect(reading: Reading, namespace: str | None, now: datetime.datetime) -> Snapshot:
    """Read all that the checks look at, of one namespace or of all that have pools."""
    crd, is_crd_known = reading.one(f"{_CRDS}/{names.CRD}", f"customresourcedefinitions {names.CRD}")
    other_crd, _ = reading.one(f"{_CRDS}/{names.OTHER_CRD}", f"customresourcedefinitions {names.OTHER_CRD}")
    has_kind = crd is not None or not is_crd_known
    pools = (_pools(reading, namespace) if has_kind else ()) or ()
    places = sorted({namespace_of(pool) for pool in pools})
    operators = _operators(reading)
    operator_places = sorted({namespace_of(operator) for operator in operators or ()})
    pods = _everywhere(reading, places, "/api/v1", "pods", names.POOL_LABEL)
    answers, num_not_asked = _ask(reading, pods or ())
    return Snapshot(
        now=now,
        crd=crd,
        other_crd=other_crd,
        is_crd_known=is_crd_known,
        pools=pools,
        operators=operators,
        operator_pods=_operator_pods(reading, operator_places),
        leases=dict(_leases(reading, operators or ())),
        reviews=tuple(_reviews(reading, operators or (), places)),
        nodes=reading.items("/api/v1/nodes", "nodes") if pools else None,
        storage_classes=_storage_classes(reading, pools),
        namespaces=dict(_namespaces(reading, sorted({*places, *operator_places, "kube-system"}))) if pools else {},
        deployments=_everywhere(reading, places, "/apis/apps/v1", "deployments"),
        stateful_sets=_everywhere(reading, places, "/apis/apps/v1", "statefulsets"),
        services=_everywhere(reading, places, "/api/v1", "services"),
        pods=pods,
        policies=_everywhere(
            reading, sorted({*places, *operator_places}), "/apis/networking.k8s.io/v1", "networkpolicies"
        ),
        budgets=_everywhere(reading, places, "/apis/policy/v1", "poddisruptionbudgets"),
        warnings=_everywhere(reading, places, "/api/v1", "events", fields="type=Warning") or (),
        secrets=dict(_secrets(reading, pools, operators or ())),
        answers=answers,
        num_not_asked=num_not_asked,
        unread=tuple(dict.fromkeys(reading.unread)),
    )


def _pools(reading: Reading, namespace: str | None) -> Manifests | None:
    if namespace is None:
        return reading.items(f"{_POOLS}/{names.PLURAL}", f"{names.CRD} in all namespaces (or give --namespace)")
    path = f"{_POOLS}/namespaces/{quoted(namespace)}/{names.PLURAL}"
    return reading.items(path, f"{names.CRD} in namespace {namespace}")


def _everywhere(
    reading: Reading, places: Sequence[str], group: str, plural: str, selector: str = "", fields: str = ""
) -> Manifests | None:
    """List a kind in each of the namespaces; None if one of them may not be read, for half of it says nothing."""
    found: list[Manifest] = []
    is_complete = True
    for place in places:
        path = f"{group}/namespaces/{quoted(place)}/{plural}"
        items = reading.items(path, f"{plural} in namespace {place}", selector, fields)
        is_complete = is_complete and items is not None
        found += items or ()
    return tuple(found) if is_complete else None


def _operators(reading: Reading) -> Manifests | None:
    selector = ",".join(f"{key}={value}" for key, value in names.OPERATOR_LABELS.items())
    return reading.items("/apis/apps/v1/deployments", "deployments in all namespaces, to find the operator", selector)


def _operator_pods(reading: Reading, places: Sequence[str]) -> Manifests:
    selector = ",".join(f"{key}={value}" for key, value in names.OPERATOR_LABELS.items())
    return _everywhere(reading, places, "/api/v1", "pods", selector) or ()


def _leases(reading: Reading, operators: Manifests) -> "Iterable[tuple[tuple[str, str], Manifest | None]]":
    for operator in operators:
        namespace, name = lease_of(operator)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{quoted(namespace)}/leases/{quoted(name)}"
        lease, is_read = reading.one(path, f"leases in namespace {namespace}")
        if is_read:
            yield (namespace, name), lease


def _reviews(reading: Reading, operators: Manifests, places: Sequence[str]) -> Iterable[Review]:
    """Ask whether each operator's account may do all that it must, in the namespaces with pools that it serves."""
    for operator in operators:
        account = account_of(operator)
        for attributes in needed_rights(operator, places):
            is_allowed = reading.review(account, attributes)
            if is_allowed is None:
                return
            yield Review(account, in_words(attributes), is_allowed)


def _storage_classes(reading: Reading, pools: Manifests) -> Manifests | None:
    specs = (spec_of(pool) for pool in pools)
    is_needed = any(isinstance(spec, InferencePool) and spec.cache.disk is not None for spec in specs)
    return reading.items("/apis/storage.k8s.io/v1/storageclasses", "storageclasses") if is_needed else None


def _namespaces(reading: Reading, places: Sequence[str]) -> "Iterable[tuple[str, dict[str, str]]]":
    for place in places:
        namespace, is_read = reading.one(f"/api/v1/namespaces/{quoted(place)}", f"namespaces {place}")
        if is_read and namespace is not None:
            yield place, dict(namespace["metadata"].get("labels") or {})


def _secrets(
    reading: Reading, pools: Manifests, operators: Manifests
) -> "Iterable[tuple[tuple[str, str], frozenset[str] | None]]":
    needed = {(need.namespace, need.name) for pool in pools for need in needed_secrets(pool)}
    pulling = {(place, name) for place in set(map(namespace_of, pools)) for name in pull_secrets(operators, place)}
    for namespace, name in sorted(needed | pulling):
        path = f"/api/v1/namespaces/{quoted(namespace)}/secrets/{quoted(name)}"
        secret, is_read = reading.one(path, f"secrets in namespace {namespace}")
        if is_read:
            yield (namespace, name), None if secret is None else frozenset(secret.get("data") or ())


def _ask(reading: Reading, pods: Manifests) -> tuple[dict[tuple[str, str], Answer], int]:
    """Ask every engine pod that runs, many at a time, until the time is up."""
    waiting: queue.SimpleQueue[Manifest] = queue.SimpleQueue()
    asked = [pod for pod in pods if _can_answer(pod)]
    for pod in asked:
        waiting.put(pod)
    answers: dict[tuple[str, str], Answer] = {}
    threads = [
        threading.Thread(target=_keep_asking, args=(reading, waiting, answers), daemon=True)
        for _ in range(min(_NUM_ASKING, len(asked)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers, waiting.qsize()


def _can_answer(pod: Manifest) -> bool:
    is_engine = pod["metadata"]["labels"].get(names.PART_LABEL) == names.ENGINE
    has_address = bool((pod.get("status") or {}).get("podIP")) and not pod["metadata"].get("deletionTimestamp")
    return is_engine and has_address


def _keep_asking(
    reading: Reading, waiting: "queue.SimpleQueue[Manifest]", answers: dict[tuple[str, str], Answer]
) -> None:
    while not reading.is_over:
        try:
            pod = waiting.get_nowait()
        except queue.Empty:
            return
        namespace, name = namespace_of(pod), name_of(pod)
        try:
            ready, ready_reason = _door(reading, namespace, name, names.ENGINE_PORT, "/ready")
            summary, summary_reason = _door(reading, namespace, name, names.SIDECAR_PORT, "/v1/summary")
        except _NotAllowedError as error:
            what = f"get pods/proxy in namespace {namespace}, through which pods tell how their tiers are"
            reading.unread.append(Unread(what, str(error), is_forbidden=True))
            continue
        answers[namespace, name] = Answer(ready, ready_reason, summary, summary_reason)


class _NotAllowedError(Exception):
    """We may not ask pods."""


def _door(reading: Reading, namespace: str, name: str, port: int, path: str) -> tuple[dict[str, Any] | None, str]:
    try:
        _, body = reading.ask_pod(namespace, name, port, path, POD_SECONDS)
        document = json.loads(body)
    except CallError as error:
        if error.status == 403:
            raise _NotAllowedError(str(error)) from error
        return None, str(error)
    except (ValueError, RecursionError):
        return None, "the answer is not JSON"
    return (document, "") if isinstance(document, dict) else (None, "the answer is no object")
