"""What a leader does, put together: reconciling, watching engine pods, asking and annotating them."""

from pagoda_operator.annotate import Annotator
from pagoda_operator.annotate.instruments import AnnotateInstruments
from pagoda_operator.arguments import Settings
from pagoda_operator.kube.api import Api
from pagoda_operator.kube.client import configuration
from pagoda_operator.kube.lines import KubeLines
from pagoda_operator.pool_gauges import PoolGauges
from pagoda_operator.process import Parts
from pagoda_operator.reconcile import Reconciler
from pagoda_operator.scrape import Fleet
from pagoda_operator.scrape.instruments import ScrapeInstruments
from pagoda_operator.scrape.pod_watch import PodWatch
from pagoda_runtime.metrics import Metrics


def make_parts(settings: Settings, api: Api, metrics: Metrics) -> Parts:
    """Return the parts of a process that has just begun to lead."""
    fleet = Fleet(ScrapeInstruments(metrics))
    annotator = Annotator(fleet, api, AnnotateInstruments(metrics))
    reconciler = Reconciler(api, settings.images, settings.peers, fleet, PoolGauges(metrics))

    async def watch_pods() -> None:
        lines = KubeLines(await configuration())
        try:
            await PodWatch(api, lines, fleet, settings.namespaces).run()
        finally:
            await lines.close()

    return Parts(reconciler.reconcile, fleet.watch, (watch_pods, fleet.run, annotator.run))
