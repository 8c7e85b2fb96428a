"""The metrics of the engine's core. Made once per registry: a second registration of a name is an error there."""

import math
from typing import TYPE_CHECKING

from pagoda_engine.core.settings import EngineSettings
from pagoda_engine.model.interface import ModelFacts
from pagoda_protocol import metrics as names
from pagoda_runtime.metrics import Metrics

if TYPE_CHECKING:
    from pagoda_engine.core.stats import EngineStats


class Instruments:
    """One attribute per metric, and what all of them show at one moment."""

    def __init__(self, metrics: Metrics, facts: ModelFacts, settings: EngineSettings) -> None:
        self._running = metrics.gauge(names.NUM_REQUESTS_RUNNING, "Requests in the batch.")
        self._waiting = metrics.gauge(names.NUM_REQUESTS_WAITING, "Requests queued or loading.")
        self._usage = metrics.gauge(names.KV_CACHE_USAGE, "Share of the device's pages that requests hold, 0..1.")
        self._blocks = metrics.gauge(names.BLOCKS, "Pages of the device by state.", ("state",))
        self._attached = metrics.gauge(names.TIER_ATTACHED, "1 while a sidecar is attached.")
        self.prompt_tokens = metrics.counter(
            names.PROMPT_TOKENS, "Prompt tokens by what finally supplied them, once per client request.", ("source",)
        )
        self.unavoidable_tokens = metrics.counter(
            names.UNAVOIDABLE_PROMPT_TOKENS,
            "Prompt tokens that any cache, however large, would have had to compute: seen by this engine for the first "
            "time in half an hour to an hour, or after the last block that can be reused. An estimate, about 1 % off.",
        )
        self._hit_ratio = metrics.gauge(
            names.HIT_RATIO, "Share of prompt tokens of the last half to whole hour that came from a cache; NaN: none."
        )
        self._hit_ceiling = metrics.gauge(
            names.HIT_CEILING_RATIO,
            "The most that the hit ratio could have been with unlimited memory. Far above it: more RAM, disk or pool "
            "would help. Near it: only other traffic or better routing would. NaN: no prompts.",
        )
        self._show_hits(None, None)
        self.replayed_tokens = metrics.counter(
            names.REPLAYED_TOKENS, "Tokens supplied again, by why and from where.", ("cause", "source")
        )
        self.generation_tokens = metrics.counter(names.GENERATION_TOKENS, "Tokens generated.")
        self.requests = metrics.counter(names.REQUESTS, "Requests ended, by outcome.", ("outcome",))
        self.first_token = metrics.histogram(names.TIME_TO_FIRST_TOKEN, "From arrival to the first token.")
        self.inter_token = metrics.histogram(names.INTER_TOKEN, "Between two tokens of a request.")
        self.step = metrics.histogram(names.STEP, "One step of the model.")
        self.preemptions = metrics.counter(names.PREEMPTIONS, "Requests preempted because blocks ran out.")
        self.loads_skipped = metrics.counter(
            names.TIER_LOADS_SKIPPED, "Loads not made or ended short, by reason.", ("reason",)
        )
        self.stores = metrics.counter(names.TIER_STORES, "Blocks offered to the tiers, by outcome.", ("outcome",))
        self.parked_sessions = metrics.counter(
            names.PARKED_SESSIONS, "Idle sessions whose blocks have left the device: they are safe below."
        )
        self.parked_blocks = metrics.counter(names.PARKED_BLOCKS, "Blocks that left the device with a parked session.")
        self.sessions_not_parked = metrics.counter(
            names.SESSIONS_NOT_PARKED, "Attempts to park a session after which it stayed, by reason.", ("reason",)
        )
        self.integrity_failures = metrics.counter(
            names.INTEGRITY_FAILURES, "Records that failed verification on their way in.", ("tier", "reason")
        )
        metrics.info(
            names.CACHE_CONFIG_INFO,
            "The cache's configuration, under vLLM's label names.",
            {
                "block_size": str(facts.block_tokens),
                "num_gpu_blocks": str(facts.num_pages),
                "cache_dtype": facts.kv_dtype,
                "enable_prefix_caching": "True",
                "max_num_batched_tokens": str(settings.max_batch_tokens),
                "max_num_seqs": str(settings.max_sequences),
            },
        )

    def show_attached(self, is_attached: bool) -> None:
        """Set the gauge that changes by itself, also while the engine sleeps."""
        self._attached.set(is_attached)

    def _show_hits(self, hit_ratio: float | None, ceiling_ratio: float | None) -> None:
        # None is NaN: no rate is not a rate of zero
        self._hit_ratio.set(math.nan if hit_ratio is None else hit_ratio)
        self._hit_ceiling.set(math.nan if ceiling_ratio is None else ceiling_ratio)

    def show(self, stats: "EngineStats") -> None:
        """Set every gauge that a step or the time between two changes."""
        self._show_hits(stats.hit_ratio, stats.ceiling_ratio)
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._usage.set(stats.kv_usage)
        self._blocks.set(stats.num_free, state="free")
        self._blocks.set(stats.num_cached, state="cached")
        self._blocks.set(stats.num_referenced, state="referenced")
