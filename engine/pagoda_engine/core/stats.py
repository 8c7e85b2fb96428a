"""What an engine says of itself at one moment."""

from dataclasses import dataclass

from pagoda_engine.core.below import Below
from pagoda_engine.core.ceiling import HitCeiling
from pagoda_engine.core.residency import Residency
from pagoda_engine.core.roster import Roster
from pagoda_engine.core.throughput import Throughput
from pagoda_engine.core.tiers import LoadReport
from pagoda_engine.core.workload import Workload


@dataclass(frozen=True)
class EngineStats:
    """Counts at the end of the last step. `num_free + num_cached + num_referenced` is the number of pages."""

    num_running: int = 0  # admitted, without those that wait for a load
    num_waiting: int = 0  # not admitted, or waiting for a load
    num_loading: int = 0  # of the waiting ones: they wait for a load
    num_following: int = 0  # of the running ones: they wait for a block that an earlier request computes
    kv_usage: float = 0.0  # referenced pages, 0..1
    num_free: int = 0
    num_cached: int = 0  # unreferenced, in the prefix table
    num_referenced: int = 0
    loads_in_flight: int = 0  # tier threads may write into their pages, also of requests that are gone
    stores_in_flight: int = 0  # blocks that wait for a store or are being stored
    num_claims: int = 0  # blocks that some request has undertaken to compute or load
    num_preemptions: int = 0  # since the start
    prefill_tokens_per_second: float = 0.0  # 0 until measured
    outstanding_seconds: float = 0.0  # predicted work of all requests held
    free_work_seconds: float = 0.0  # work it holds without slowing others by more than 20 %
    ram_seconds_per_token: float = 0.0  # what loads have cost lately, all in all; 0 until measured
    disk_seconds_per_token: float = 0.0
    hit_ratio: float | None = None  # of the last half to whole hour; None: no prompts
    ceiling_ratio: float | None = None

    def load_report(self) -> LoadReport:
        """Return what the sidecar is told of it."""
        return LoadReport(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            outstanding_seconds=self.outstanding_seconds,
            prefill_tokens_per_second=self.prefill_tokens_per_second,
            free_work_seconds=self.free_work_seconds,
            ram_seconds_per_token=self.ram_seconds_per_token,
            disk_seconds_per_token=self.disk_seconds_per_token,
            hit_ratio=self.hit_ratio,
        )


def take_stats(
    roster: Roster,
    residency: Residency,
    below: Below | None,
    throughput: Throughput,
    workload: Workload,
    ceiling: HitCeiling,
) -> EngineStats:
    """Count. In the engine's thread."""
    pages = residency.pages
    num_loading = sum(request.load is not None and request.load.is_awaited for request in roster.running)
    return EngineStats(
        num_running=len(roster.running) - num_loading,
        num_waiting=len(roster.waiting) + num_loading,
        num_loading=num_loading,
        num_following=sum(request.leader is not None for request in roster.running),
        kv_usage=pages.num_referenced / pages.num_pages,
        num_free=pages.num_free,
        num_cached=pages.num_cached,
        num_referenced=pages.num_referenced,
        loads_in_flight=0 if below is None else len(below.loader.jobs),
        stores_in_flight=0 if below is None else below.storer.num_blocks,
        num_claims=len(residency.claims),
        num_preemptions=roster.num_preemptions,
        prefill_tokens_per_second=throughput.tokens_per_second,
        outstanding_seconds=workload.outstanding_seconds(roster),
        free_work_seconds=workload.free_seconds,
        ram_seconds_per_token=0.0 if below is None else below.loader.seconds_per_token("ram"),
        disk_seconds_per_token=0.0 if below is None else below.loader.seconds_per_token("disk"),
        hit_ratio=ceiling.hit_ratio,
        ceiling_ratio=ceiling.ceiling_ratio,
    )
