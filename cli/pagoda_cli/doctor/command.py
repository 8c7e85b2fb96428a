"""`pagoda doctor`, from its options to its exit status. It writes nothing to the cluster but access reviews."""

import datetime
import queue
import threading
from dataclasses import dataclass
from pathlib import Path

from pagoda_cli.doctor.checks import examine
from pagoda_cli.doctor.collect import collect
from pagoda_cli.doctor.reading import ClusterError, Reading, connect
from pagoda_cli.doctor.report import Report, as_json, as_text, unread_report
from pagoda_runtime.deadlines import Deadline

READ_SECONDS = 60.0
# What a kubeconfig's credential program may take on top: it is asked before any call of ours, and nobody bounds it.
GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    namespace: str | None
    """None: all."""
    kubeconfig: Path | None
    context: str | None
    as_json: bool


def doctor(request: Request) -> int:
    """Examine a cluster, print what was found, return the exit status. Never hangs, whatever the cluster does."""
    report = _bounded(request, READ_SECONDS + GRACE_SECONDS)
    print(as_json(report) if request.as_json else as_text(report))
    return report.status


def _bounded(request: Request, seconds: float) -> Report:
    """Examine in a thread that is left behind where it hangs."""
    answers: queue.SimpleQueue[Report | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(examined(request))
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread, which raises it
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        return unread_report("", request.namespace, _now().isoformat(), f"nothing came of it within {seconds:.0f} s")
    if isinstance(answer, BaseException):
        raise answer
    return answer


def examined(request: Request, seconds: float = READ_SECONDS) -> Report:
    """Read a cluster and examine it."""
    now, address = _now(), ""
    try:
        server = connect(request.kubeconfig, request.context)
        address = server.address
        reading = Reading(server, Deadline(seconds))
        reading.check_connection()
    except ClusterError as error:
        return unread_report(address, request.namespace, now.isoformat(), str(error))
    snapshot = collect(reading, request.namespace, now)
    return Report(address, request.namespace, now.isoformat(), len(snapshot.pools), examine(snapshot))


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
